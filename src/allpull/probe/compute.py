"""Time training steps of one model by batch, precision and threads: the rank of ``allpull probe compute``."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from allpull.errors import BadInput
from allpull.probe.buckets import ready_times, single_rank_group
from allpull.probe.largest_batch import largest
from allpull.probe.ranks import join_group, run, write_result
from allpull.probe.setting import Setting
from allpull.probe.step_timing import Moments, Trained, matmul_flop_per_s, set_precision
from allpull.rundir.job_file import JobFile

WARMUP = 3
LEAST, MOST = 5, 500  # steps per point: enough for a median, and no more than a figure needs
PATIENCE = 15.0  # a batch that would take more than this many times the requested seconds is left out
PEAK_S = 0.5  # for the matrix product
NOISE_S, NOISE_SIDE = 0.5, 192  # a piece of work of some 100 µs
PARTS = ("forward_s", "backward_s", "optimizer_s")
FAULTS = (RuntimeError, ValueError)  # that torch raises when memory is short or a layer does not support the setting


def main(job_file: str) -> None:
    """Measure all points of the job and write ``probes/compute.json``."""
    job = JobFile.read(job_file)
    options, device = job.options, join_group(job.spec["launch"]["threads"], "auto").device
    torch.backends.cudnn.benchmark = True  # as in the trainer
    setting = Setting(job, device)
    before, left_out = quiet(), list[str]()
    points = list(measure(setting, options, left_out))
    batches = largest_batches(setting, job, job_file, left_out) if options.get("largest_batch") else []
    if not points:
        raise BadInput("nothing could be measured: " + "; ".join(left_out[:3]), hint="try smaller batches")
    buckets = list(measure_buckets(setting, options, points, left_out))
    torch.set_num_threads(max(options["threads"]))
    precisions = list(dict.fromkeys(point["precision"] for point in points))
    write_result(
        job,
        "compute",
        {
            "schema": "allpull.compute/1.6",
            "model": job.spec["model"]["name"],
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            **{name: options[name] for name in ("channels", "classes", "size", "bucket_bytes")},
            "parameters": setting.parameters,
            "flop_per_sample": flop_per_sample(setting),
            "matmul_flop_per_s": {name: matmul_flop_per_s(name, device, PEAK_S) for name in precisions},
            "noise": [before, quiet()],
            "points": points,
            "buckets": buckets,
            "largest": batches,
            "left_out": left_out,
        },
    )


def measure(setting: Setting, options: dict[str, Any], left_out: list[str]) -> Iterator[dict[str, Any]]:
    """The points in turn; reasons for points that cannot be measured are appended to ``left_out``."""
    for precision in options["precisions"]:
        if precision == "tf32" and setting.device.type != "cuda":
            left_out.append("tf32: only GPUs have it")
            continue
        for threads in options["threads"]:
            torch.set_num_threads(threads)
            set_precision(precision)
            where = f"{precision}, {threads} thread{'s' * (threads != 1)}"
            model, s_per_sample = setting.model(), 0.0
            for batch in options["batches"]:
                expected_s = s_per_sample * batch * (WARMUP + LEAST)
                if expected_s > PATIENCE * options["seconds"]:
                    left_out.append(f"{where}, batch {batch} and more: it would take some {expected_s:.0f} s")
                    break
                try:
                    times = timed(model, setting.images(batch), setting.classes, precision, options["seconds"])
                except FAULTS as fault:
                    first = (str(fault).splitlines() or [type(fault).__name__])[0][:200]
                    left_out.append(f"{where}, batch {batch} and more: {first}")
                    break
                s_per_sample = float(np.median(times["step_s"])) / batch
                yield {"batch": batch, "precision": precision, "threads": threads, **times}


def timed(model: nn.Module, images: torch.Tensor, classes: int, precision: str, seconds: float) -> dict[str, Any]:
    """Time steps for about ``seconds``: each step and its parts, as ``schema.probes.ComputeMeasured``."""
    trained = Trained(model, images=images, classes=classes, precision=precision)
    first = Moments(images.device)
    for _ in range(WARMUP):
        trained.step(first.mark)
    typical_s = sum(first.between()[-3:])
    count = min(MOST, max(LEAST, int(seconds / max(typical_s, 1e-6))))
    moments = Moments(images.device)
    for _ in range(count):
        trained.step(moments.mark)
    gaps = [*moments.between(), 0.0]  # begin, forward, backward, optimizer: four moments per step
    times: dict[str, Any] = {name: gaps[place::4] for place, name in enumerate(PARTS)}
    times["step_s"] = [sum(gaps[start : start + 3]) for start in range(0, len(gaps), 4)]
    host = moments.host_s
    issue_s = [host[start + 3] - host[start] for start in range(0, len(host), 4)]
    return {**times, "issue_s": issue_s if images.device.type == "cuda" else None}


def largest_batches(setting: Setting, job: JobFile, job_file: str, left_out: list[str]) -> list[dict[str, Any]]:
    """The largest batch of each precision that fits into memory; reasons for none are appended to ``left_out``."""
    wanted = [name for name in job.options["precisions"] if name != "tf32" or setting.device.type == "cuda"]
    each = (largest(setting, job, job_file, name, left_out) for name in wanted)
    return [one for one in each if one]


def measure_buckets(
    setting: Setting, options: dict[str, Any], points: list[dict[str, Any]], left_out: list[str]
) -> Iterator[dict[str, Any]]:
    """The buckets of each precision, at the largest batch that could be measured and the most threads."""
    for precision in dict.fromkeys(point["precision"] for point in points):
        of_it = [point for point in points if point["precision"] == precision]
        largest = max(of_it, key=lambda point: (point["batch"], point["threads"]))
        set_precision(precision)
        torch.set_num_threads(largest["threads"])
        typical_s = float(np.median(largest["step_s"]))
        steps = min(MOST, max(LEAST, math.ceil(options["seconds"] / typical_s)))
        cell = {name: largest[name] for name in ("batch", "precision", "threads")}
        try:
            with single_rank_group(setting.device):
                ready = ready_times(
                    setting.model(),
                    setting.images(largest["batch"]),
                    classes=setting.classes,
                    precision=precision,
                    bucket_bytes=options["bucket_bytes"],
                    steps=steps,
                )
        except FAULTS as fault:
            left_out.append(f"buckets, {precision}: {(str(fault).splitlines() or ['?'])[0][:200]}")
        else:
            yield {**cell, **ready}


def flop_per_sample(setting: Setting) -> float | None:
    """Floating-point operations of forward and backward, by torch's own count; None where it cannot count them."""
    batch = 2  # batch statistics need two values
    try:
        model, images = setting.model(), setting.images(batch)
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
        return float(counter.get_total_flops()) / batch or None
    except FAULTS:
        return None


def quiet() -> dict[str, float | None]:
    """How steady the machine is now, as ``schema.probes.Noise``: a repeated small matrix product."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    left, times_s = torch.ones(NOISE_SIDE, NOISE_SIDE), list[float]()
    end = time.perf_counter() + NOISE_S
    while time.perf_counter() < end:
        began = time.perf_counter()
        torch.mm(left, left)
        times_s.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    worst = float(np.quantile(times_s, 0.95)) / min(times_s)
    return {"median_s": float(np.median(times_s)), "p95_over_fastest": worst, "load_1min": load}


if __name__ == "__main__":
    run(main)
