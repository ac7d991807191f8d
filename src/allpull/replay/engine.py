"""Play a recorded window again: the one max-plus engine that every what-if question is put to.

The equations stand at the head of ``analyse.window``. They know two operations, waiting for the later of two moments
and adding a duration, and so are linear in the max-plus algebra (Baccelli, Cohen, Olsder & Quadrat 1992,
"Synchronization and Linearity", §1.2): shortening any duration can bring no moment later. Dimemas plays message traces
again in the same way, with another network; a step of data-parallel training needs no messages for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.walk import moments
from allpull.replay.window import STEP, Window


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
    """When each rank of ``window`` ends each step."""
    end_s = _ends_s(window, None)
    step_s = np.diff(end_s.max(axis=1), prepend=0.0) if end_s.size else np.zeros(window.steps.size)
    return Played(end_s=end_s, step_s=step_s)


def replay_each(window: Window, begins_s: Floats) -> Floats:
    """When each rank ends each step that it begins at ``begins_s``, both of shape (steps, ranks).

    Every step is played by itself: what goes wrong in one is not carried into the next.
    """
    return _ends_s(window, begins_s)


def _ends_s(window: Window, begins_s: Floats | None) -> Floats:
    end_s = np.zeros((window.steps.size, window.ranks))
    for event, _, leave_s, _ in moments(window, begins_s):
        if window.kind[event] == STEP:
            end_s[window.step_of[event]] = leave_s
    return end_s
