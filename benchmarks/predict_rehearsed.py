"""Is `allpull predict` right for sizes, link rates, buckets and faults that it has not seen? Rehearsed clusters say so.

    python benchmarks/predict_rehearsed.py [--keep DIR] [--passes 2] [--minutes 25] [--extrap PYTHON] [--output FILE]

Calibrated on 1 and 2 ranks at 100 Mbit/s and an all-reduce probe of 2 ranks, it forecasts every case of
`rehearsed_cases.py`. The truth of each is rehearsed, ``--passes`` times, in an order shuffled anew in each pass, and is
the median of these. With ``--keep`` nothing is rehearsed twice: the same command continues, and forecasts anew.

Set before anything was rehearsed: `TARGETS`.

Beside it stand a step without overlap, one with perfect overlap, linear scaling from 2 ranks, and what Extra-P
(Calotoiu et al. 2013, SC '13) picks from five measured sizes, which it needs; ``--extrap`` is the interpreter of an
environment with `extrap`. Needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rehearsed_cases import PROBE_RANKS, RATE, Case, Rehearsal, cases
from rehearsed_truth import Truth, probe, rehearse

TARGETS = {"mean_error": 0.03, "largest_error": 0.08, "coverage": 0.85, "half_width": 0.05}
"""Mean and largest error, least share of truths within the 90 % interval, and the mean half of its width."""


def collect(folder: Path, passes: int, until_s: float) -> dict[str, list[Truth]]:
    """The truths of every rehearsal, one for each pass; those of a later pass are missing once the time is over.

    Calibrations and the probe are made once, in the first pass, among the others.
    """
    probe(folder / "probe", PROBE_RANKS, RATE)
    truths = dict[str, list[Truth]]()
    for turn in range(passes):
        jobs = rehearsals(cases(), calibrations=turn == 0)
        random.Random(turn).shuffle(jobs)
        for job in jobs:
            if time.monotonic() > until_s and not (folder / f"{job.name}-{turn}").is_dir():
                continue
            truth = rehearse(job, folder / f"{job.name}-{turn}", seed=100 * turn + job.ranks)
            truths.setdefault(job.name, []).append(truth)
            print(
                f"{turn} {job.name:14} step {truth.step_s:.4f} s, epoch {truth.epoch_s or 0:7.3f} s, "
                f"CPU {truth.cpu_share:.2f}, queued {truth.queued_share:.3f}, load {truth.load:.1f}"
                f"{' DISTURBED' if truth.load > (os.cpu_count() or 1) + 1 else ''}",
                file=sys.stderr,
                flush=True,
            )
    return truths


def rehearsals(chosen: Sequence[Case], *, calibrations: bool) -> list[Rehearsal]:
    """The jobs of cases, each once: truths that calibrate nothing, and the calibrations where they are wanted."""
    made = {one.name: one for case in chosen for one in case.calibration}
    foreseen = {case.truth.name: case.truth for case in chosen if case.truth.name not in made}
    return list((foreseen | made if calibrations else foreseen).values())


def main() -> None:
    """Collect, forecast, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the run directories, which the next call goes on from")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no rehearsal after so long")
    parser.add_argument("--extrap", help="Python of an environment with extrap")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        collect(folder, options.passes, time.monotonic() + 60 * options.minutes)


if __name__ == "__main__":
    main()
