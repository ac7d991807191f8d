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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from rehearsed_cases import PROBE_SIZES, SAMPLE_MS, WARMUP, Rehearsal
from stored import ROOT, commit

TIMEOUT_S = 300
SAMPLED_S = 0.5
MEASURED = "measured.json"  # beside the run directory, once the run is complete
PROGRAM = ROOT / "benchmarks" / "tuned_program.py"
MOST_QUEUED = 0.03  # of a step: a rank that waited longer for a CPU disturbs it by more than the error to be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What one rehearsal took; times in s.

    ``step_s`` and ``epoch_s`` are means after the first ``WARMUP`` steps, and the first epoch; ``epoch_s`` None: a job
    of one. A step in which some rank waited for a CPU for more than ``MOST_QUEUED`` of it, which no cluster with a CPU
    for each rank would show, counts as the mean of the ``undisturbed`` ones; steps with an evaluation and those of a
    loader count as they are. ``as_recorded_s``: step and epoch with every step as it is. ``cpu_share``: how busy its
    own processes and the kernel's network code kept all cores during those steps. ``load`` is the load average of a
    minute at its end.
    """

    step_s: float
    epoch_s: float | None
    as_recorded_s: tuple[float, float | None]
    steps: int
    undisturbed: int
    bucket_bytes: tuple[int, ...]
    cpu_share: float
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
        ends_s = step_table(run_of(folder))[:, :, END] / 1e9
        share = cpu_share(samples, float(ends_s[:, WARMUP - 1].mean()), float(ends_s[:, -1].mean()))
        measured.write_text(json.dumps({"cpu_share": share, "load": os.getloadavg()[0], "commit": commit()}))
    machine = json.loads(measured.read_text())
    recorded = {name: machine[name] for name in ("cpu_share", "load", "commit")}
    return read(run_of(folder), recorded, loads=rehearsal.workers > 0)


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


BEGIN, END, QUEUED, EVALUATED = range(4)
COLUMNS = ("begin_ns", "end_ns", "queued_ns", "evaluation_ns")


def step_table(run: Path) -> NDArray[np.float64]:
    """``COLUMNS`` of every step, in ns, (ranks, steps, 4); 0 for what was not recorded."""
    ranks = [_lines(path) for path in sorted((run / "steps").glob("rank-*.jsonl"))]
    rows = [[[one.get(name) or 0 for name in COLUMNS] for one in records if "step" in one] for records in ranks]
    return np.array(rows, dtype=np.float64)


def read(run: Path, machine: Mapping[str, Any], *, loads: bool) -> Truth:
    """The truth of a complete run; ``machine`` is what was recorded about it besides. ``loads``: it has a loader."""
    table = step_table(run)
    steps_s = (table[:, :, END] - table[:, :, BEGIN]).mean(axis=0) / 1e9
    regular = (table[:, :, EVALUATED] == 0).all(axis=0) & (np.arange(steps_s.size) >= WARMUP)
    events = _lines(run / "events" / "rank-00000.jsonl")
    buckets = [event["sizes_bytes"] for event in events if event.get("kind") == "buckets"]
    quiet = regular & (loads | (table[:, :, QUEUED].max(axis=0) / 1e9 <= MOST_QUEUED * steps_s))
    epochs = [event["step"] for event in events if event.get("kind") == "epoch"]  # the first steps of each
    counted_s = np.where(regular & ~quiet, steps_s[quiet].mean(), steps_s) if quiet.any() else steps_s
    step_s, epoch_s = means(counted_s, epochs)
    return Truth(
        step_s=step_s,
        epoch_s=epoch_s,
        as_recorded_s=means(steps_s, epochs),
        steps=int(regular.sum()),
        undisturbed=int(quiet.sum()),
        bucket_bytes=tuple(buckets[-1]) if buckets else (),
        **machine,
    )


def means(steps_s: NDArray[np.float64], epochs: Sequence[int]) -> tuple[float, float | None]:
    """The mean step after warm-up, and the mean epoch after the first; ``epochs`` are their first steps."""
    of_epochs = float(steps_s[epochs[1] : epochs[-1]].sum()) / (len(epochs) - 2) if len(epochs) > 2 else None
    return float(steps_s[WARMUP:].mean()), of_epochs


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
