"""Whether virtual accelerators that share a machine disturb each other: step time of many ranks over that of one.

    python benchmarks/undisturbed_ranks.py [--ranks 8] [--steps 60] [--repeats 5] [--output FILE]

The ranks are not linked: no DDP, no collective, so nothing but the machine they share can slow them. One rank and
then all of them train the same accelerator (ResNet-50 on a V100, shrunk by 20), recorded as in any run; the ratio is
that of their mean step times, the first steps left aside. Two per cent is the promise. Run it on a quiet machine: it
says how much CPU time the ranks used, and what else runs takes its part of the rest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from allpull import marks
from allpull.observe.identity import Identity
from allpull.observe.recording.recorder import Recorder
from allpull.rehearse.ranks.loop import Place, Training, join
from allpull.rehearse.ranks.schedule import plan
from allpull.rehearse.ranks.timeline import Timeline, fine_timers
from allpull.rundir import layout
from stored import keep

WARMUP_STEPS = 5
PROMISE = 1.02
CLUSTER = {"shrink": 20.0, "accelerator": {"model": "resnet50", "batch": 64, "device": "V100"}}
FORK = multiprocessing.get_context("fork")  # torch is imported once, as in a rehearsal


def one_rank(folder: str, rank: int, ranks: int, steps: int, start: Barrier) -> None:
    """Train one rank that knows of no other, and record it in ``folder``."""
    join()
    fine_timers()
    who = Identity(rank=rank, local_rank=rank, ranks=ranks, host="here")
    recorder = Recorder(folder, who, budget=1 << 24, warmup_steps=WARMUP_STEPS)
    training = Training(plan(CLUSTER), Place(rank=rank, ranks=1), Timeline())
    start.wait()
    marks.listen(recorder)
    training.run(WARMUP_STEPS + steps)
    recorder.close(ended_well=True)


def step_times_s(ranks: int, steps: int) -> list[float]:
    """The mean step time of each of ``ranks`` ranks that train side by side, s."""
    with tempfile.TemporaryDirectory() as folder:
        for name in layout.FOLDERS:
            (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        start = FORK.Barrier(ranks)
        processes = [FORK.Process(target=one_rank, args=(folder, rank, ranks, steps, start)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit("a rank failed")
        return [mean_step_s(Path(folder) / layout.steps_file(rank)) for rank in range(ranks)]


def mean_step_s(path: Path) -> float:
    """Seconds from one step's end to the next, on average, after the warm-up."""
    ends = [json.loads(line)["end_ns"] for line in path.read_text(encoding="ascii").splitlines()[1:]]
    return (ends[-1] - ends[WARMUP_STEPS - 1]) / (len(ends) - WARMUP_STEPS) / 1e9


def cpu_s() -> float:
    """CPU time of all ranks that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(values: list[float]) -> dict[str, float]:
    """Median and extremes."""
    return {name: round(find(values), 4) for name, find in (("median", statistics.median), ("low", min), ("high", max))}


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    planned_s = plan(CLUSTER).step_s
    Training(plan(CLUSTER), Place(rank=0, ranks=1), Timeline())  # torch imports half of itself when first used
    alone: list[float] = []
    means: list[float] = []
    worst: list[float] = []
    used_s = 0.0
    for repeat in range(options.repeats):
        (base_s,) = step_times_s(1, options.steps)
        before_s = cpu_s()
        together_s = step_times_s(options.ranks, options.steps)
        used_s += cpu_s() - before_s
        alone.append(base_s / planned_s)
        means.append(statistics.fmean(together_s) / base_s)
        worst.append(max(together_s) / base_s)
        print(f"repeat {repeat}: mean of ranks {means[-1]:.4f}, slowest {worst[-1]:.4f}", file=sys.stderr)
    steps = options.repeats * options.ranks * (options.steps + WARMUP_STEPS)
    result: dict[str, Any] = {
        "ranks": options.ranks,
        "cpus": len(os.sched_getaffinity(0)),
        "planned_step_ms": round(planned_s * 1e3, 2),
        "alone_over_planned": spread(alone),
        "mean_rank_over_alone": spread(means),
        "slowest_rank_over_alone": spread(worst),
        "promise": PROMISE,
        "kept": statistics.median(worst) <= PROMISE,
        "cpu_ms_per_step_and_rank": round(used_s / steps * 1e3, 2),
        "steps": options.steps,
        "repeats": options.repeats,
    }
    keep(options.output, result)


if __name__ == "__main__":
    main()
