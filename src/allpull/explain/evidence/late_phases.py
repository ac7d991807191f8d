"""In which phases late ranks exceed the others, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.cpu_waiting import COMPUTING
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.meetings import before_meetings
from allpull.explain.evidence.outliers import Outlier, beyond_usual
from allpull.replay.leave_one_out import beyond_others


def excess_by_phase(facts: Facts) -> dict[str, Floats]:
    """By how much each rank exceeds the others in each phase, s per step, (ranks,); phase → seconds.

    Of ranks that are late before different meetings, before their own ones: in a step as a whole they may be no longer.
    Of one that pauses, in its pauses, and of the others without these.
    """
    phases = [name for name in COMPUTING if name in facts.window.work]
    if not facts.late.own_meetings:
        pauses = {one.rank: one.pauses for one in facts.late.slow if one.pauses}
        return {name: _beyond(facts.window.per_step(name), pauses) for name in phases}
    excess = {name: np.zeros(facts.window.ranks) for name in phases}
    for name in phases:
        before_s = before_meetings(facts.window, [name])
        for rank, places in facts.late.own_meetings.items():
            excess[name][rank] = sum(float(beyond_others(before_s[place])[:, rank].mean()) for place in places)
    return excess


def in_pauses(facts: Facts, late: Iterable[Outlier]) -> dict[str, Floats]:
    """By how much ``late`` ranks exceed the others more than usual in their pauses; phase → s, (steps, ranks)."""
    paused = np.zeros(facts.window.wall_s.shape, dtype=np.bool_)
    for one in late:
        paused[list(one.pauses), one.rank] = True
    phases = {name: facts.window.per_step(name) for name in COMPUTING if name in facts.window.work}
    return {name: np.where(paused, beyond_usual(seconds), 0.0) for name, seconds in phases.items()}


def _beyond(seconds: Floats, pauses: Mapping[int, Sequence[int]]) -> Floats:
    """By how much each rank exceeds the others, s, (ranks,); ``seconds`` (steps, ranks), rank → rows of its pauses."""
    usual_s, beyond_s, more_s = seconds.copy(), beyond_others(seconds), beyond_usual(seconds)
    for rank, rows in pauses.items():
        usual_s[list(rows), rank] -= more_s[list(rows), rank]
    excess: Floats = beyond_others(usual_s).mean(axis=0)
    for rank, rows in pauses.items():
        excess[rank] = beyond_s[list(rows), rank].sum() / len(beyond_s)
    return excess
