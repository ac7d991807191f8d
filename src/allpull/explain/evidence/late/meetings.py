"""The meetings of a step: what ranks work before each of them, and after the one before."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.replay.window import STEP, Window

USUALLY = 0.5  # of the steps: fewer with equal meetings are not compared


def before_meetings(window: Window, phases: Collection[str]) -> list[Floats]:
    """The work in ``phases`` before each meeting of a usual step, in s, each of shape (steps, ranks).

    What comes after the last meeting of a step counts to the first one of the next. Steps without the usual number of
    meetings are left out; empty, where most are, and with only one meeting.
    """
    events = np.bincount(window.step_of, minlength=window.steps.size)
    usual = int(np.bincount(events).argmax()) if events.size else 0
    rows = np.flatnonzero((events == usual) & ~window.odd)
    rows = rows[rows > 0]  # the first one's work after the step before is not in the window
    if usual < 3 or rows.size < max(MIN_POINTS, USUALLY * window.steps.size):
        return []
    none_s = np.zeros((window.events, window.ranks))
    work_s = sum((seconds for name, seconds in window.work.items() if name in phases), start=none_s)
    begins = np.searchsorted(window.step_of, rows)
    before_s = [work_s[begins + place] for place in range(usual - 1)]
    is_end = window.kind[begins - 1] == STEP
    before_s[0] = before_s[0] + np.where(is_end[:, None], work_s[begins - 1], 0.0)
    return before_s
