"""Rehearse a case of `rehearsed_cases.py` once, and measure it from outside: seconds per step, and what disturbed it.

Nothing here reads a record through allpull's analysis: the ends of steps come from the files of the run directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rehearsed_cases import PROBE_SIZES, SAMPLE_MS, WARMUP, Rehearsal
from stored import ROOT, commit

TIMEOUT_S = 300
SAMPLED_S = 0.5
MEASURED = "measured.json"  # beside the run directory, once the run is complete
PROGRAM = ROOT / "benchmarks" / "tuned_program.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What one rehearsal took; times in s.

    ``epoch_s`` is the mean of its whole epochs after the first, None for a job of one. ``cpu_share``: how busy its own
    processes and the kernel's network code kept all cores during those steps. ``queued_share``: of a step, how long a
    rank waited for a CPU, mean over ranks. ``load`` is the load average of a minute at its end.
    """

    step_s: float
    epoch_s: float | None
    steps: int
    bucket_bytes: tuple[int, ...]
    cpu_share: float
    queued_share: float
    load: float
    commit: str


def rehearse(rehearsal: Rehearsal, folder: Path, seed: int) -> Truth:
    """Rehearse it in ``folder``, unless that was done before with the same cluster.

    Raises:
        RuntimeError: it failed.
    """
    cluster, measured = folder / "cluster.toml", folder / MEASURED
    text = rehearsal.toml(seed)
    if not (measured.is_file() and cluster.read_text() == text):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cluster.write_text(text)
        with sampled(str(folder)) as samples:
            run_allpull(*_command(rehearsal, cluster, folder / "runs"))
        truth = read(run_of(folder), samples)
        measured.write_text(json.dumps(asdict(truth), indent=1))
    plain = json.loads(measured.read_text())
    return Truth(**{**plain, "bucket_bytes": tuple(plain["bucket_bytes"])})


def probe(folder: Path, ranks: int, mbit: int) -> Path:
    """The run directory of an all-reduce probe without shrinking, made in ``folder`` where there is none."""
    cluster, sizes = folder / "cluster.toml", ("--sizes", PROBE_SIZES)
    text = f'# probed with {PROBE_SIZES}\n[cluster]\nhosts = {ranks}\nlink = "{mbit} Mbit/s"\n'
    if not ((folder / MEASURED).is_file() and cluster.read_text() == text):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cluster.write_text(text)
        launched = ("--launcher", f"rehearse:{cluster}", *sizes, "--out", str(folder / "runs"))
        (folder / MEASURED).write_text(run_allpull("probe", "allreduce", *launched, "--json"))
    return run_of(folder)


def run_of(folder: Path) -> Path:
    """The run directory in ``folder``."""
    return max((folder / "runs").iterdir())


def run_allpull(*arguments: str, accepted: Collection[int] = (0,)) -> str:
    """What `allpull` with these arguments prints; ``accepted`` exit codes are no failures.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "allpull", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode not in accepted:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def _command(rehearsal: Rehearsal, cluster: Path, out: Path) -> list[str]:
    if not rehearsal.workers:
        return ["rehearse", str(cluster), "--steps", str(rehearsal.steps), "--out", str(out)]
    options = {"bucket-mb": 2.5, "workers": rehearsal.workers, "steps": rehearsal.steps, "sample-ms": SAMPLE_MS}
    program = [str(PROGRAM), *(f"--{name}={value}" for name, value in options.items())]
    launched = ["-n", str(rehearsal.ranks), "--launcher", f"rehearse:{cluster}", "--out", str(out)]
    return ["run", *launched, "--", *program]


def read(run: Path, samples: Sequence[Sample]) -> Truth:
    """The truth of a complete run: the mean over its steps but the first ``WARMUP``, and over ranks."""
    ranks = [_lines(path) for path in sorted((run / "steps").glob("rank-*.jsonl"))]
    ends_ns = np.array([[record["end_ns"] for record in records if "step" in record] for records in ranks])
    queued_ns = np.array(
        [[record.get("queued_ns") or 0 for record in records if "step" in record] for records in ranks]
    )
    steps = ends_ns.shape[1] - WARMUP
    first_s, last_s = float(ends_ns[:, WARMUP - 1].mean()) / 1e9, float(ends_ns[:, -1].mean()) / 1e9
    events = _lines(run / "events" / "rank-00000.jsonl")
    begins_ns = [event["t_ns"] for event in events if event.get("kind") == "epoch"]
    buckets = [event["sizes_bytes"] for event in events if event.get("kind") == "buckets"]
    epochs = len(begins_ns) - 2  # whole ones after the first: the last one begun is not complete
    return Truth(
        step_s=(last_s - first_s) / steps,
        epoch_s=(begins_ns[-1] - begins_ns[1]) / epochs / 1e9 if epochs > 0 else None,
        steps=steps,
        bucket_bytes=tuple(buckets[-1]) if buckets else (),
        cpu_share=cpu_share(samples, first_s, last_s),
        queued_share=float(queued_ns[:, WARMUP:].mean()) / 1e9 * steps / (last_s - first_s),
        load=os.getloadavg()[0],
        commit=commit(),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """CPU seconds until ``t_s`` of the monotonic clock: of each process, and of the kernel's interrupts."""

    t_s: float
    processes_s: dict[int, float]
    interrupts_s: float


def cpu_share(samples: Sequence[Sample], first_s: float, last_s: float) -> float:
    """How busy all cores were with the sampled work from ``first_s`` to ``last_s``.

    >>> one = Sample(t_s=0.0, processes_s={1: 1.0}, interrupts_s=0.0)
    >>> two = Sample(t_s=2.0, processes_s={1: 1.5, 2: 0.25}, interrupts_s=0.25)
    >>> cpu_share([one, two], 0, 2) * psutil.cpu_count()
    0.5
    """
    used_s = [0.0]
    for before, after in pairwise(samples):
        processes_s = sum(cpu_s - before.processes_s.get(pid, 0.0) for pid, cpu_s in after.processes_s.items())
        used_s.append(used_s[-1] + processes_s + after.interrupts_s - before.interrupts_s)
    first, last = np.interp([first_s, last_s], [sample.t_s for sample in samples], used_s)
    return float((last - first) / (last_s - first_s) / (psutil.cpu_count() or 1))


@contextmanager
def sampled(mark: str) -> Iterator[list[Sample]]:
    """Samples of every process whose command line names ``mark``, twice per second, until the context ends."""
    samples, ended = list[Sample](), threading.Event()

    def take() -> None:
        while not ended.wait(SAMPLED_S):
            processes = dict[int, float]()
            for process in psutil.process_iter(["cmdline", "cpu_times"]):
                times = process.info["cpu_times"]
                if times and any(mark in argument for argument in process.info["cmdline"] or ()):
                    processes[process.pid] = times.user + times.system
            kernel = psutil.cpu_times()
            at_s, interrupts_s = time.monotonic(), kernel.irq + kernel.softirq
            samples.append(Sample(t_s=at_s, processes_s=processes, interrupts_s=interrupts_s))

    sampler = threading.Thread(target=take)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()
