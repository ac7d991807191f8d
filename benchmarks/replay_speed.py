"""How fast a window is played again, and how fast the efficiency tree with all its intervals is there.

    python benchmarks/replay_speed.py [--ranks 1024] [--steps 1000] [--buckets 8] [--repeats 5] [--output FILE]

The window is made of numbers: jitter on every rank, one evaluation in 200 steps, buckets that become ready in even
parts of backward. Time is that of the processor, of all threads together, so that a machine that does other things at
the time says the same; wall time stands beside it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from allpull.explain.efficiency_tree import tree
from allpull.replay.engine import replay
from allpull.replay.window import REDUCE, STEP, Reductions, Window
from stored import keep

EVALUATED_EVERY = 200
BUCKET_S = 0.004
BUCKET_BYTES = 25 << 20


def made(ranks: int, steps: int, buckets: int) -> Window:
    """A window of two events a step, the reduction and the end, with everything in it that takes time."""
    rng = np.random.default_rng(0)
    evaluation = np.zeros((steps, ranks))
    evaluation[::EVALUATED_EVERY] = 0.5
    before = {"forward": 0.030, "backward": 0.060, "input": 0.002, "copy": 0.001, "host": 0.001}
    after = {"optimizer": 0.003, "other": 0.001}
    work = {name: np.zeros((2 * steps, ranks)) for name in (*before, *after, "evaluation")}
    for first, phases in enumerate((before, after)):
        for name, seconds in phases.items():
            work[name][first::2] = seconds * rng.gamma(100, 0.01, (steps, ranks))
    work["evaluation"][::2] = evaluation
    left = (buckets - 1 - np.arange(buckets)) / buckets
    nothing = np.zeros((2 * steps, ranks))
    return Window(
        steps=np.arange(steps, dtype=np.int64),
        odd=evaluation.any(axis=1),
        samples=np.full((steps, ranks), 32.0),
        begin_s=np.zeros(ranks),
        wall_s=np.zeros((steps, ranks)),
        kind=np.tile(np.array([REDUCE, STEP], dtype=np.int8), steps),
        step_of=np.repeat(np.arange(steps), 2),
        use=np.full(2 * steps, -1, dtype=np.intp),
        uses=(),
        work=work,
        meets=nothing.astype(np.bool_),
        waits=nothing.astype(np.bool_),
        early_s=nothing,
        transfer_s=nothing,
        reductions=Reductions(
            lead_s=left[None, :, None] * work["backward"][::2, None, :],
            seconds=BUCKET_S * rng.gamma(100, 0.01, (steps, buckets)),
            tail_s=np.zeros((steps, ranks)),
            size_bytes=np.full(buckets, BUCKET_BYTES, dtype=np.int64),
        ),
        measured_s=1.0,
        level="bucket",
        bound_s=0.0,
    )


def seconds(what: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median processor and wall time of ``what``, and the range of the first."""
    processor, wall = [], []
    for _ in range(repeats):
        start, start_wall = time.process_time(), time.perf_counter()
        what()
        processor.append(time.process_time() - start)
        wall.append(time.perf_counter() - start_wall)
    return {
        "median_cpu_s": round(statistics.median(processor), 3),
        "low_cpu_s": round(min(processor), 3),
        "high_cpu_s": round(max(processor), 3),
        "median_wall_s": round(statistics.median(wall), 3),
    }


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    window = made(options.ranks, options.steps, options.buckets)
    result = {
        "ranks": options.ranks,
        "steps": options.steps,
        "buckets": options.buckets,
        "replay": seconds(lambda: replay(window), options.repeats),
        "tree_with_intervals": seconds(lambda: tree(window, window), options.repeats),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "repeats": options.repeats,
    }
    keep(options.output, result)


if __name__ == "__main__":
    main()
