"""How much longer a rank computes where more ranks share its host: as measured, and beyond that as far as it grew.

Ranks of a host share its memory, its power and its CPUs. Between the numbers of ranks per host that were measured the
next smaller one counts. Beyond the largest nobody knows: compute grows by anything from nothing to as much for each
rank more as from the last but one measured number to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allpull.predict.calibration.measured import MeasuredRun
from allpull.predict.calibration.parameters import Floats, Parameter

GROWTH = "growth of compute"
LEAST_WORK_S = 1e-9  # of a step: work is divided by


def crowding(
    runs: Sequence[MeasuredRun], largest: MeasuredRun, resamples: Mapping[int, NDArray[np.intp]]
) -> dict[int, Floats]:
    """Work of a rank by ranks per host, over that in ``largest``, (draws,); of several runs the one with most ranks."""
    fullest = dict[int, MeasuredRun]()
    for run in sorted(runs, key=lambda one: one.ranks):
        if run.batch == largest.batch:
            fullest[run.ranks_per_host] = run
    fullest[largest.ranks_per_host] = largest
    whole_s = work_s(largest, resamples)
    return {count: work_s(run, resamples) / whole_s for count, run in fullest.items()}


def work_s(run: MeasuredRun, resamples: Mapping[int, NDArray[np.intp]]) -> Floats:
    """Seconds that a rank of ``run`` works in a step without waiting for input, (draws,)."""
    each_s = (run.work_s - run.input_s).mean(axis=1)
    means: Floats = np.maximum(each_s[resamples[id(run)]].mean(axis=1), LEAST_WORK_S)
    return means


def growth(measured: Mapping[int, Floats], rng: np.random.Generator) -> list[Parameter]:
    """By how much each rank more on a host than in ``measured`` adds to compute; []: one number shows no growth."""
    if len(measured) == 1:
        return []
    before, last = sorted(measured)[-2:]
    slope = np.maximum(measured[last] - measured[before], 0.0) / (last - before)
    return [
        Parameter(
            name=GROWTH,
            unit="share of compute per rank of a host",
            draws=slope * rng.uniform(0, 1, slope.size),
            state="assumed",
            source=f"runs of {before:,} and {last:,} ranks per host",
            reason=f"no run has more than {last:,} ranks per host: between no growth and as much as up to there",
            measure=f"the same training with {2 * last:,} ranks on a host",
        )
    ]


def crowded(ranks_per_host: int, measured: Mapping[int, Floats], grows: Floats) -> Floats:
    """Work of a rank over that in the largest run, (draws,); ``grows``: for each rank of a host beyond the fullest.

    >>> measured = {1: np.array([0.8]), 2: np.array([1.0])}
    >>> crowded(1, measured, np.array([0.1])).round(2), crowded(4, measured, np.array([0.1])).round(2)
    (array([0.8]), array([1.2]))
    """
    if not measured:
        return np.ones(())
    place = max((one for one in measured if one <= ranks_per_host), default=min(measured))
    more = max(0, ranks_per_host - max(measured))
    return measured[place] + more * grows
