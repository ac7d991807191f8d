"""Delays of one rank, in a step or a few that follow each other, that cost much of a run: too few to tell of more.

A delay is one however many steps it lasts: what disturbs a rank for ten steps has happened once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
FAR = 4.0  # times what the others wait in the median step: in every step of a delay
MOST = 3  # delays that no rule is made for
LISTED = 6  # steps that are named one by one
EDGE = 0.2  # of the longest step of a delay: less, before and after it, is not part of it
PART = 0.5  # of a delay: in a step with an evaluation, a checkpoint or a first batch the rest is theirs
IN_TURN = frozenset({"rotating-imbalance", "uneven-batches"})
"""The rules that answer for delays of whichever rank they fall on, if there are more than a few."""
OF_EVALUATIONS = frozenset({"sequential-evaluation", "uneven-evaluation"})
"""The rules that answer for what a rank evaluates longer than others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delay:
    """``rank`` is late in the steps in the rows from ``first`` to ``last``, for which others wait ``lost_s``."""

    rank: int
    first: int
    last: int
    lost_s: float


def lone_delays(facts: Facts, found: Sequence[Finding]) -> list[str]:
    """A note on each of the longest delays that one rank cost the others, but where a finding answers for them."""
    window = facts.window
    if facts.blame is None or not window.steps.size:
        return []
    named = {rank for one in found for rank in one.ranks}
    lost_s, late = facts.blame.delay_s.max(axis=1), facts.blame.late_s.argmax(axis=1)
    own_s = _own_s(window, late, with_evaluation=all(one.rule not in OF_EVALUATIONS for one in found))
    is_own = ~window.odd | (own_s > PART * lost_s)
    least_s = max(LEAST * window.measured_s, STEPS * float(np.median(window.wall_s)))
    far = np.flatnonzero(is_own & (lost_s > FAR * np.median(lost_s)))
    large = [one for one in _delays(far, late, lost_s) if one.lost_s > least_s]
    if len(large) > MOST and any(one.rule in IN_TURN for one in found):
        return []
    of_ranks = {rank: [one for one in large if one.rank == rank] for rank in sorted({one.rank for one in large})}
    return [_note(facts, delays) for rank, delays in of_ranks.items() if rank not in named]


def _delays(rows: NDArray[np.int64], late: NDArray[np.int64], lost_s: Floats) -> list[_Delay]:
    """The delays in steps at ``rows``, ascending: neighbouring steps with the same ``late`` rank (steps,) are one.

    It begins and ends with a step that costs at least ``EDGE`` of what the longest of its steps does.
    """
    goes_on = (np.diff(rows) == 1) & (np.diff(late[rows]) == 0)
    delays = []
    for several in np.split(rows, np.flatnonzero(~goes_on) + 1):
        edges = several[lost_s[several] >= EDGE * lost_s[several].max(initial=0.0)]
        if edges.size:
            first, last = int(edges[0]), int(edges[-1])
            lost = float(lost_s[first : last + 1].sum())
            delays.append(_Delay(rank=int(late[first]), first=first, last=last, lost_s=lost))
    return delays


def _note(facts: Facts, delays: Sequence[_Delay]) -> str:
    """What the ``delays`` of one rank cost the others."""
    window = facts.window
    waited_s = sum(one.lost_s for one in delays)
    steps = [
        " to ".join(f"{window.steps[row]:,}" for row in dict.fromkeys((one.first, one.last))) for one in delays[:LISTED]
    ]
    several = len(delays) > 1 or delays[0].first < delays[0].last
    more = f" and {len(delays) - LISTED:,} more" if len(delays) > LISTED else ""
    are_first = len(delays) > 1 and all(one.first == one.last and facts.first[one.first] for one in delays)
    begins = ", in each of which an epoch begins," if are_first else ""
    few = "so few delays do not tell" if len(delays) > 1 else "one delay does not tell"
    told = f"{few} what a longer run loses" if len(delays) <= MOST else "no rule tells why"
    return (
        f"in step{'s' * several} {', '.join(steps)}{more}{begins} the others waited {show_time(waited_s)} for "
        f"rank {delays[0].rank}, {percent(waited_s / window.measured_s)} of the time of all {window.steps.size:,} "
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
