"""Test the replay on steps that it was not fitted to: the error of a prediction, not of a description.

The transfers of a window are derived from the ends of its steps, so a replay reproduces those ends even if the model is
wrong. Therefore each half of the steps (every other one) is replayed with the mean transfers of the other half
(cross-validation: Stone 1974, J. Royal Statistical Society B 36(2)), each step from its recorded begin. The work of
ranks stays as recorded, so the test is of waiting and transfer: if a rank had not waited for the rank that the model
says, or a bucket not for the one before it, steps would come out too long or too short.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.engine import replay_each
from allpull.replay.window import REDUCE, Window

HALVES = 2
LEAST_STEPS = 4  # two in each half: one step gives no mean


def held_out(window: Window) -> Window:
    """``window`` with the transfers of each half of its steps replaced by their mean in the other half.

    Reductions are averaged by bucket and rank; calls by use, rank and which one of its use in the step it is, as calls
    of one use may be of other sizes, or in flight together. What occurs in one half only stays as it was.
    """
    half = np.arange(window.steps.size) % HALVES
    lane = window.reductions
    if lane is not None:
        of_lane = half[window.step_of[window.kind == REDUCE]]
        lane = replace(lane, seconds=_exchanged(lane.seconds, of_lane), tail_s=_exchanged(lane.tail_s, of_lane))
    transfer_s = window.transfer_s.copy()
    for use in range(len(window.uses)):
        rows = np.flatnonzero(window.use == use)
        step = window.step_of[rows]
        place = np.arange(rows.size) - np.searchsorted(step, step)
        for one in range(int(place.max(initial=-1)) + 1):
            of_place = rows[place == one]
            transfer_s[of_place] = _exchanged(transfer_s[of_place], half[window.step_of[of_place]])
    return replace(window, reductions=lane, transfer_s=transfer_s)


def held_out_error(window: Window) -> float | None:
    """The relative error of step times in the half that they were not fitted to; None: too few steps, or no transfers.

    |Σ replayed − Σ recorded| ÷ Σ recorded of the wall times of each rank in each half; the mean of them.
    """
    has_no_transfers = window.reductions is None and not window.uses
    if window.steps.size < LEAST_STEPS or has_no_transfers or not window.wall_s.sum() > 0:
        return None
    ends_s = window.begin_s + np.cumsum(window.wall_s, axis=0)
    missed_s = replay_each(held_out(window), ends_s - window.wall_s) - ends_s
    half = np.arange(window.steps.size) % HALVES
    sums = [(missed_s[half == one].sum(axis=0), window.wall_s[half == one].sum(axis=0)) for one in range(HALVES)]
    shares = [np.abs(missed) / wall for missed, wall in sums if (wall > 0).all()]
    return float(np.mean(shares)) if shares else None


def _exchanged(seconds: Floats, half: NDArray[np.intp]) -> Floats:
    """``seconds`` (rows, …) with the mean over the rows of the other half in each, where that has any."""
    exchanged = seconds.copy()
    for one in range(HALVES):
        if (half != one).any():
            exchanged[half == one] = seconds[half != one].mean(axis=0)
    return exchanged
