"""Play a recorded window again: the one max-plus engine that every what-if question is put to.

The equations stand at the head of ``analyse.window``. They know two operations, waiting for the later of two moments
and adding a duration, and so are linear in the max-plus algebra (Baccelli, Cohen, Olsder & Quadrat 1992,
"Synchronization and Linearity", §1.2): shortening any duration can bring no moment later. Dimemas plays message traces
again in the same way, with another network; a step of data-parallel training needs no messages for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allpull.analyse.grid import Floats
from allpull.analyse.window import CALL, REDUCE, STEP, Reductions, Window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """What a replay says, in s after the first begin.

    ``end_s`` (steps, ranks): when each rank ends each step. ``step_s`` (steps,): what each step adds to the time at
    which the last rank ends it, ≥ 0; they sum to ``total_s``.
    """

    end_s: Floats
    step_s: Floats

    @property
    def total_s(self) -> float:
        """From the first begin to the last end; 0 where there are no steps."""
        return float(self.end_s[-1].max()) if self.end_s.size else 0.0


def replay(window: Window) -> Played:
    """When each rank of ``window`` ends each step: a loop over its events, each of them on all ranks at once."""
    work_s = total_work_s(window)
    after_s = None if window.reductions is None else lane_s(window.reductions)
    end_s = np.zeros((window.steps.size, window.ranks))
    now_s = window.begin_s.astype(np.float64)
    reduction = 0
    for event, (kind, step) in enumerate(zip(window.kind.tolist(), window.step_of.tolist(), strict=True)):
        now_s += work_s[event]
        if kind == CALL:
            now_s = _called(window, event, now_s)
        elif kind == REDUCE and window.reductions is not None and after_s is not None:
            ready_s = (now_s - window.reductions.lead_s[reduction]).max(axis=1)
            last_s = (ready_s + after_s[reduction]).max()
            now_s = np.maximum(now_s, last_s) + window.reductions.tail_s[reduction]
            reduction += 1
        elif kind == STEP:
            end_s[step] = now_s
    step_s = np.diff(end_s.max(axis=1), prepend=0.0) if end_s.size else np.zeros(window.steps.size)
    return Played(end_s=end_s, step_s=step_s)


def total_work_s(window: Window) -> Floats:
    """What each rank does before each event, all phases together, in s, shape (events, ranks)."""
    total = np.zeros((window.events, window.ranks))
    for seconds in window.work.values():
        total += seconds
    return total


def lane_s(reductions: Reductions) -> Floats:
    """How long after bucket b can begin the last one ends, were the lane free, shape (reductions, buckets).

    F_b = max(R_b, F_(b−1)) + seconds_b, written out, is F_last = max_b (R_b + Σ_(c≥b) seconds_c); this is the sum.
    """
    after: Floats = np.cumsum(reductions.seconds[:, ::-1], axis=1)[:, ::-1]
    return after


def _called(window: Window, event: int, now_s: Floats) -> Floats:
    """When each rank goes on after the collective ``event``, which it reaches at ``now_s``, shape (ranks,)."""
    transfer_s = window.transfer_s[event]
    arrived_s = now_s - window.early_s[event]
    last_s = arrived_s.max(where=window.meets[event], initial=-np.inf)
    after: Floats = np.where(window.waits[event], np.maximum(now_s, last_s + transfer_s), now_s + transfer_s)
    return after
