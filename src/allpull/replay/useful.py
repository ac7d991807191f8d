"""Which work of a window is useful and which is sequential: the two terms that the efficiency tree rests on.

Useful is the computation of the training itself: forward, backward, the optimizer, and evaluation by all ranks at once.
Sequential is work of one rank or a few while the others wait: checkpoints, and evaluation by some of the ranks. The
other work (the loader, copies, the host between phases) is neither.
"""

from __future__ import annotations

from allpull.analyse.steps.grid import Floats
from allpull.replay.window import Bools, Window

COMPUTE = ("forward", "backward", "optimizer")
"""Useful on any rank and at any time."""

TAKES_PART = 0.1  # of the longest evaluation in the step: a rank that took less only entered and left it


def useful(window: Window) -> dict[str, Floats]:
    """The useful work, phase → seconds of shape (events, ranks); phases that no rank did are absent."""
    work_s = {name: window.work[name] for name in COMPUTE if name in window.work}
    if "evaluation" in window.work:
        work_s["evaluation"] = window.work["evaluation"] * evaluated_by_all(window)[window.step_of][:, None]
    return work_s


def sequential(window: Window) -> dict[str, Floats]:
    """The sequential work, phase → seconds of shape (events, ranks); phases that no rank did are absent."""
    work_s = {}
    if "evaluation" in window.work:
        work_s["evaluation"] = window.work["evaluation"] * ~evaluated_by_all(window)[window.step_of][:, None]
    if "checkpoint" in window.work:
        work_s["checkpoint"] = window.work["checkpoint"]
    return work_s


def evaluated_by_all(window: Window) -> Bools:
    """Whether every rank evaluated in each step, shape (steps,)."""
    seconds = window.per_step("evaluation")
    longest = seconds.max(axis=1, initial=0.0)
    all_of_them: Bools = (longest > 0) & (seconds >= TAKES_PART * longest[:, None]).all(axis=1)
    return all_of_them


def useful_s(window: Window) -> Floats:
    """Useful seconds of each step and rank, shape (steps, ranks)."""
    return window.sums(*useful(window).values())
