"""In which phases late ranks exceed the others, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import COMPUTING
from allpull.explain.evidence.late.meetings import before_meetings
from allpull.explain.evidence.late.outliers import Outlier, beyond_usual
from allpull.replay.leave_one_out import beyond_others


def excess_by_phase(facts: Facts, *, pauses: bool) -> dict[str, Floats]:
    """By how much each rank exceeds the others in each phase, s per step, (ranks,); phase → seconds.

    Of ranks that are late before different meetings, before their own ones: in a step as a whole they may be no longer.
    Of one that pauses, in its ``pauses``, or without them; of one that is late for a while, in it.
    """
    phases = [name for name in COMPUTING if name in facts.window.work]
    if not facts.late.own_meetings:
        return {name: _beyond(facts.window.per_step(name), facts.late.slow, pauses=pauses) for name in phases}
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


def in_each_step(facts: Facts, late: Iterable[Outlier]) -> dict[str, Floats]:
    """By how much ``late`` ranks exceed the others in each step, as phases share it; phase → s, (1, ranks)."""
    excess = {name: np.maximum(one, 0.0) for name, one in excess_by_phase(facts, pauses=False).items()}
    total_s = sum(excess.values(), start=np.zeros(facts.window.ranks))
    share = np.zeros(facts.window.ranks)
    for one in late:
        share[one.rank] = min(1.0, one.size.value / total_s[one.rank]) if total_s[one.rank] > 0 else 0.0
    return {name: (share * seconds)[None] for name, seconds in excess.items()}


def _beyond(seconds: Floats, late: Sequence[Outlier], *, pauses: bool) -> Floats:
    """By how much each rank exceeds the others, s, (ranks,), the ``late`` ones in their ``pauses`` or without them.

    ``seconds``: (steps, ranks). A rank that is late in the other steps, too, pauses by what exceeds that.
    """
    pausing = [one for one in late if one.pauses]
    usual_s, beyond_s, more_s = seconds.copy(), beyond_others(seconds), beyond_usual(seconds)
    for one in pausing:
        rows = list(one.pauses)
        usual_s[rows, one.rank] -= more_s[rows, one.rank]
    excess: Floats = beyond_others(usual_s).mean(axis=0)
    for one in late:
        if one.rows is not None:
            excess[one.rank] = beyond_s[one.rows[0] : one.rows[1] + 1, one.rank].sum() / len(seconds)
    for one in pausing if pauses else ():
        late_s = beyond_s if one.split is None else more_s
        excess[one.rank] = late_s[list(one.pauses), one.rank].sum() / len(seconds)
    return excess
