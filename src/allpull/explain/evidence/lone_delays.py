"""Single steps in which one rank comes so late that it costs much of a run: too few to tell more of them to come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import COMPUTING, is_work, per_step
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Window
from allpull.schema.explained import Finding
from allpull.units import percent, show_time

LEAST = 0.03  # of the time of all steps
STEPS = 3.0  # as long as so many usual steps: less is jitter
MOST = 3  # delays that no rule is made for
LISTED = 6  # steps that are named one by one
PART = 0.5  # of a delay: in a step with an evaluation, a checkpoint or a first batch the rest is theirs
IN_TURN = frozenset({"rotating-imbalance", "uneven-batches"})
"""The rules that answer for delays of whichever rank they fall on, if there are more than a few."""
OF_EVALUATIONS = frozenset({"sequential-evaluation", "uneven-evaluation"})
"""The rules that answer for what a rank evaluates longer than others."""


def lone_delays(facts: Facts, found: Sequence[Finding]) -> list[str]:
    """A note on each of the longest delays that one rank cost the others, but where a finding answers for them."""
    window = facts.window
    if facts.blame is None or not window.steps.size:
        return []
    named = {rank for one in found for rank in one.ranks}
    lost_s, late = facts.blame.delay_s.max(axis=1), facts.blame.late_s.argmax(axis=1)
    least_s = max(LEAST * window.measured_s, STEPS * float(np.median(window.wall_s)))
    own_s = _own_s(window, late, with_evaluation=all(one.rule not in OF_EVALUATIONS for one in found))
    large = np.flatnonzero((lost_s > least_s) & (~window.odd | (own_s > PART * lost_s)))
    if large.size > MOST and any(one.rule in IN_TURN for one in found):
        return []
    return [
        _note(facts, large[late[large] == rank], rank, lost_s)
        for rank in np.unique(late[large]).tolist()
        if rank not in named
    ]


def _note(facts: Facts, rows: NDArray[np.int64], rank: int, lost_s: Floats) -> str:
    """What the delays of ``rank`` in the steps at ``rows`` cost the others."""
    waited_s, steps = float(lost_s[rows].sum()), [f"{step:,}" for step in facts.window.steps[rows[:LISTED]]]
    more = f" and {rows.size - LISTED:,} more" if rows.size > LISTED else ""
    begins = ", in each of which an epoch begins," if rows.size > 1 and facts.first[rows].all() else ""
    told = "so few delays do not tell what a longer run loses" if rows.size <= MOST else "no rule tells why"
    return (
        f"in step{'s' * (rows.size > 1)} {', '.join(steps)}{more}{begins} the others waited {show_time(waited_s)} for "
        f"rank {rank}, {percent(waited_s / facts.window.measured_s)} of the time of all {facts.window.steps.size:,} "
        f"steps; {told}"
    )


def _own_s(window: Window, late: NDArray[np.int64], *, with_evaluation: bool) -> Floats:
    """How much longer the ``late`` rank of each step computes in it, and in the one before, than the median, (steps,).

    What it does after the last meeting of a step delays the next one. ``with_evaluation``: that is computing, too.
    Checkpoints and first batches, for which a step is odd, have rules of their own.
    """
    may_compute = (*COMPUTING, "evaluation") if with_evaluation else COMPUTING
    own_s = per_step(window, [name for name in may_compute if name in window.work and is_work(window, name)])
    own_s[1:] += own_s[:-1].copy()
    longer: Floats = own_s[np.arange(late.size), late] - lower_median(own_s)
    return longer
