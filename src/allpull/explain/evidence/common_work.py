"""What all ranks have in common in each step: it makes the step longer and no rank late, so that no wait shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import COMPUTING, held_up, is_work, per_step
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Bools


def common_phases(facts: Facts) -> tuple[str, ...]:
    """The phases of a rank between its loader and its collectives that are work of its own."""
    return tuple(name for name in COMPUTING if name in facts.window.work and is_work(facts.window, name))


def common_s(facts: Facts, phases: Sequence[str]) -> Floats:
    """The work in ``phases`` of the lower median rank in each step, s, (steps,), without its waiting for a CPU."""
    held_s = held_up(facts.window, facts.machine)
    own_s = per_step(facts.window, tuple(phases))
    return lower_median(own_s if held_s is None else np.maximum(own_s - held_s, 0.0))


def most_grown(facts: Facts, phases: Sequence[str], more: Bools, usual: Bools) -> str:
    """The one of ``phases`` in which steps ``more`` exceed steps ``usual`` most; both (steps,)."""
    excess = {}
    for name in phases:
        seconds = lower_median(facts.window.per_step(name))
        excess[name] = float(seconds[more].mean() - np.median(seconds[usual]))
    return max(excess, key=lambda name: excess[name])
