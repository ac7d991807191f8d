"""What recording costs a rank: microseconds a step, beside a step without it.

    python benchmarks/recording_cost.py [--steps 20000] [--repeats 9] [--output FILE]

A step is what the reference trainer says: four phases and a step. Silent and observed steps run in alternation,
each repeat a block of ``--steps``; the cost is the difference of their medians, in CPU time, which other load hardly
touches. No network is trained, so steps follow each other in a row: in a program that trains each costs several times
as much, because caches hold other things by then (``overhead.py``).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from allpull import marks
from allpull.observe.identity import Identity
from allpull.observe.recording.recorder import Recorder
from allpull.rundir import layout
from stored import keep


def block_ns(steps: int) -> float:
    """Nanoseconds a step of ``steps`` steps that only speak."""
    start = time.process_time_ns()
    for _ in range(steps):
        with marks.phase("input"):
            pass
        with marks.phase("forward"):
            pass
        with marks.phase("backward"):
            pass
        with marks.phase("optimizer"):
            pass
        marks.step(64)
    return (time.process_time_ns() - start) / steps


def record_only_ns(recorder: Recorder, steps: int) -> float:
    """Nanoseconds of writing one step record, phases left aside."""
    start = time.process_time_ns()
    for _ in range(steps):
        recorder.step(64)
    return (time.process_time_ns() - start) / steps


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    silent, observed, record = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in layout.FOLDERS:
            (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        who = Identity(rank=0, local_rank=0, ranks=1, host="here")
        recorder = Recorder(folder, who, budget=1 << 33, warmup_steps=5)
        for _ in range(options.repeats):
            marks.listen(None)
            silent.append(block_ns(options.steps))
            marks.listen(recorder)
            observed.append(block_ns(options.steps))
            record.append(record_only_ns(recorder, options.steps))
        recorder.close(ended_well=True)
    keep(
        options.output,
        {
            "step_record_us": _spread(record),
            "whole_step_us": _spread([on - off for on, off in zip(observed, silent, strict=True)]),
            "silent_step_us": _spread(silent),
            "steps": options.steps,
            "repeats": options.repeats,
        },
    )


def _spread(values_ns: list[float]) -> dict[str, float]:
    ordered = sorted(value / 1000 for value in values_ns)
    return {"median": round(statistics.median(ordered), 3), "low": round(ordered[0], 3), "high": round(ordered[-1], 3)}


if __name__ == "__main__":
    main()
