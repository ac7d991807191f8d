"""Check the replay on steps that it was not fitted to: the error of a prediction, not of a description.

What a window says of transfers follows from the ends of its steps, so that a replay of it repeats them, whatever sense
they make. So each half of the steps, every other one, is replayed with transfers as the other half has them on average
(cross-validation: Stone 1974, J. Royal Statistical Society B 36(2)), and each step from where it really began. What
ranks did stays as recorded, and so it is waiting and transfer that are put to the test: had a rank not waited for the
one that it is said to have waited for, or a bucket not for the one before, steps would come out too long or too short.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.engine import replay_each
from allpull.replay.window import REDUCE, Window

HALVES = 2
LEAST_STEPS = 4  # two in each half: a mean of one is no usual


def held_out(window: Window) -> Window:
    """``window`` with the transfers of each half of its steps as they are in the other half on average.

    Those of reductions are averaged by bucket and rank, those of calls by use and rank; a use that only one half has
    stays as it was.
    """
    half = np.arange(window.steps.size) % HALVES
    lane = window.reductions
    if lane is not None:
        of_lane = half[window.step_of[window.kind == REDUCE]]
        lane = replace(lane, seconds=_exchanged(lane.seconds, of_lane), tail_s=_exchanged(lane.tail_s, of_lane))
    transfer_s = window.transfer_s.copy()
    for use in range(len(window.uses)):
        rows = np.flatnonzero(window.use == use)
        transfer_s[rows] = _exchanged(transfer_s[rows], half[window.step_of[rows]])
    return replace(window, reductions=lane, transfer_s=transfer_s)


def held_out_error(window: Window) -> float | None:
    """By how much of their time steps come out wrong in the half that they were not fitted to.

    None: there are too few steps, or no transfers.

    |Σ replayed − Σ recorded| ÷ Σ recorded of the wall times of each rank in each half; the mean of them.
    """
    says_nothing = window.reductions is None and not window.uses
    if window.steps.size < LEAST_STEPS or says_nothing or not window.wall_s.sum() > 0:
        return None
    ends_s = window.begin_s + np.cumsum(window.wall_s, axis=0)
    missed_s = replay_each(held_out(window), ends_s - window.wall_s) - ends_s
    half = np.arange(window.steps.size) % HALVES
    sums = [(missed_s[half == one].sum(axis=0), window.wall_s[half == one].sum(axis=0)) for one in range(HALVES)]
    shares = [np.abs(missed) / wall for missed, wall in sums if (wall > 0).all()]
    return float(np.mean(shares)) if shares else None


def _exchanged(seconds: Floats, half: NDArray[np.intp]) -> Floats:
    """``seconds`` (rows, …) with the mean over the rows of the other half in each, where that has any."""
    found = seconds.copy()
    for one in range(HALVES):
        if (half != one).any():
            found[half == one] = seconds[half != one].mean(axis=0)
    return found
