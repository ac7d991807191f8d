"""Assign the work of each rank between the meetings of a window to the phases of its steps.

A record has the length of each phase of a step, not its place; the phases are in the order of ``WORK``. At each event a
rank has worked C since its step began. Of this, y was in none of the phases, and q = C − y was in them, one after the
other. With Q the sum of all phases and Y = C_end − Q the remainder, q is bounded by::

    max(q before, C − Y) ≤ q ≤ min(q before + what it worked since, Q)

Within these bounds q follows from the kind of event: a reduction is after all of backward; a call inside a phase is at
the place in it that fits the bounds of all ranks and steps best; a call between phases likewise. So a rank that idled
between two phases does not appear as slow in one of them.

The remainder is ``host`` and ``other``, mixed evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.statistics import evenly
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording.calls import ABSENT, NOWHERE
from allpull.replay.recording.meetings import Events
from allpull.replay.window import CALL, REDUCE, WORK, Bools

PHASES = WORK[:7]
"""Phases that records have; ``host`` and ``other`` are the remainder."""
BACKWARD = PHASES.index("backward")
MOST_LOOKS = 50  # events of a kind that are examined to find their place: it is the same in all steps

BLOCK_CELLS = 1 << 15  # steps × ranks whose work is laid out together: small enough for the caches of a CPU

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """Steps while work is laid out; arrays of shape (steps, ranks) unless stated otherwise.

    ``until_s`` (phases + 1, steps, ranks): all phases before one; ``rest_s``: in none of them. ``worked_s`` and
    ``since_s`` (events, ranks): since the step began, and since the event before.
    """

    until_s: Floats
    rest_s: Floats
    worked_s: Floats
    since_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Some steps from ``first`` on; ``by_place``: their events that are the first of a step, then the second, ..."""

    first: int
    steps: int
    by_place: list[Rows]


def lay_out_work(
    events: Events, begin_s: Floats, phases: Mapping[str, Floats], host_s: Floats | None
) -> dict[str, Floats]:
    """What was done before each event, by names of ``WORK``: seconds, shape (events, ranks); missing if 0 on all ranks.

    Args:
        events: of a window.
        begin_s: of its first step, shape (ranks,).
        phases: seconds of each of ``PHASES``, shape (steps, ranks), without time blocked in events.
        host_s: how much of the time in no phase is ``host``; None: unknown.

    All of it sums to what each rank worked before the event, ``stand_s`` less ``leave_s`` of the one before.
    """
    steps = _steps(events, begin_s, phases)
    targets_s = _targets(events, steps)
    share = np.zeros_like(steps.rest_s)
    if host_s is not None:
        np.divide(np.minimum(host_s, steps.rest_s), steps.rest_s, out=share, where=steps.rest_s > 0)
    work = {name: np.zeros(events.stand_s.shape) for name in WORK}  # takes memory where it is written
    done_in = [place for place, name in enumerate(PHASES) if phases[name].any()]
    for own in _blocks(events):
        in_phases_s, worked_s = np.zeros((own.steps, begin_s.size)), np.zeros((own.steps, begin_s.size))
        done_s = np.zeros((len(PHASES), own.steps, begin_s.size))
        for rows in own.by_place:
            step = events.step_of[rows]
            here, until_s = step - own.first, steps.until_s[:, step]
            before_s, now_s = in_phases_s[here], steps.worked_s[rows]
            least_s = np.maximum(before_s, now_s - steps.rest_s[step])
            most_s = np.minimum(before_s + steps.since_s[rows], until_s[-1])
            reached_s = np.clip(targets_s[rows], least_s, np.maximum(most_s, least_s))
            in_phases_s[here] = reached_s
            left_s = np.maximum(now_s - worked_s[here] - (reached_s - before_s), 0)
            worked_s[here] = now_s
            if host_s is not None:
                work["host"][rows] = share[step] * left_s
            work["other"][rows] = (1 - share[step]) * left_s
            for place in done_in:
                whole_s = np.clip(reached_s - until_s[place], 0, until_s[place + 1] - until_s[place])
                work[PHASES[place]][rows] = whole_s - done_s[place][here]
                done_s[place][here] = whole_s
    return {name: seconds for name, seconds in work.items() if seconds.any()}


def _steps(events: Events, begin_s: Floats, phases: Mapping[str, Floats]) -> _Steps:
    since_s = events.stand_s - np.concatenate([begin_s[None], events.leave_s[:-1]])
    total_s = np.cumsum(since_s, axis=0)
    ends = np.flatnonzero(_ends(events))
    of_steps_s = np.diff(total_s[ends], axis=0, prepend=0.0)
    before_s = np.concatenate([np.zeros((1, begin_s.size)), total_s[ends[:-1]]])
    until_s = np.zeros((len(PHASES) + 1, *of_steps_s.shape))
    for place, name in enumerate(PHASES):  # as one array for cumsum they would be in memory twice
        np.add(until_s[place], phases[name], out=until_s[place + 1])
    np.minimum(until_s, of_steps_s, out=until_s)
    return _Steps(
        until_s=until_s,
        rest_s=of_steps_s - until_s[-1],
        worked_s=total_s - before_s[events.step_of],
        since_s=since_s,
    )


def _ends(events: Events) -> Bools:
    """Which events are the last of their step, or segment of a step."""
    ends: Bools = np.append(np.diff(events.step_of) != 0, [True])
    return ends


def _blocks(events: Events) -> Iterator[_Block]:
    """The steps of ``events`` in blocks of ``BLOCK_CELLS``."""
    steps, ranks = int(events.step_of[-1]) + 1, events.stand_s.shape[1]
    size = max(1, BLOCK_CELLS // ranks)
    for first in range(0, steps, size):
        begin, end = np.searchsorted(events.step_of, [first, first + size])
        of_block = events.step_of[begin:end]
        place = np.arange(of_block.size) - np.searchsorted(of_block, of_block)
        order = np.argsort(place, kind="stable")
        by_place = np.split(begin + order, np.flatnonzero(np.diff(place[order])) + 1)
        yield _Block(first=first, steps=min(size, steps - first), by_place=by_place)


def _targets(events: Events, steps: _Steps) -> Floats:
    """How much of its phases each rank had done by each event, by the kind of event, shape (events, ranks)."""
    targets_s: Floats = steps.until_s[-1][events.step_of].copy()
    reduced = (events.kind == REDUCE) & ~_ends(events)
    targets_s[reduced] = steps.until_s[BACKWARD + 1][events.step_of[reduced]]
    for rows in _same_place(events):
        for place in set(np.unique(events.inside[rows]).tolist()) - {ABSENT}:
            inside = events.inside[rows] == place
            step = events.step_of[rows]
            if place == NOWHERE:
                found_s = steps.until_s[_between(rows, inside, events, steps)][step]
            else:
                begin_s = steps.until_s[place][step]
                found_s = begin_s + _within(rows, inside, place, events, steps) * (
                    steps.until_s[place + 1][step] - begin_s
                )
            targets_s[rows] = np.where(inside, found_s, targets_s[rows])
    return targets_s


def _same_place(events: Events) -> list[Rows]:
    """Calls at the same place of steps with equally many events."""
    calls = np.flatnonzero(events.kind == CALL)
    if not calls.size:
        return []
    first = np.searchsorted(events.step_of, events.step_of[calls])
    count = np.searchsorted(events.step_of, events.step_of[calls], side="right") - first
    keys = np.stack([events.use[calls], calls - first, count])
    order = np.lexsort(keys)
    new = np.flatnonzero((np.diff(keys[:, order]) != 0).any(axis=0)) + 1
    return np.split(calls[order], new)


def _bounds(rows: Rows, inside: Bools, events: Events, steps: _Steps) -> tuple[Rows, Rows, Floats, Floats]:
    """For some of ``rows`` and the ranks that are ``inside``: step, rank, and the bounds of their time in phases."""
    looks = np.array(evenly(list(range(rows.size)), MOST_LOOKS), dtype=np.intp)
    look, rank = np.nonzero(inside[looks])
    event = rows[looks[look]]
    step, worked_s = events.step_of[event], steps.worked_s[event, rank]
    return step, rank, worked_s - steps.rest_s[step, rank], worked_s


def _within(rows: Rows, inside: Bools, place: int, events: Events, steps: _Steps) -> float:
    """The share of phase ``place`` that was over at events ``rows``: the nearest to all bounds, the most of several.

    Σ distance(x, [a, b]) is least at the medians of all a and b.
    """
    step, rank, least_s, most_s = _bounds(rows, inside, events, steps)
    begin_s = steps.until_s[place, step, rank]
    length_s = steps.until_s[place + 1, step, rank] - begin_s
    known = length_s > 0
    if not known.any():
        return 0.0
    ends = np.concatenate([least_s[known] - begin_s[known], most_s[known] - begin_s[known]])
    return float(np.sort(np.clip(ends / np.tile(length_s[known], 2), 0, 1))[ends.size // 2])


def _between(rows: Rows, inside: Bools, events: Events, steps: _Steps) -> int:
    """How many phases were over at events ``rows``, which are in none: what misses bounds least, the most of several.

    Before the reduction backward has not begun; after it, it is over.
    """
    step, rank, least_s, most_s = _bounds(rows, inside, events, steps)
    until_s = steps.until_s[:, step, rank]
    missed_s: Floats = np.maximum(np.maximum(least_s - until_s, until_s - most_s), 0).sum(axis=1)
    reductions = np.flatnonzero(events.kind == REDUCE)
    of_step = reductions[np.isin(events.step_of[reductions], events.step_of[rows[:1]])]
    if of_step.size:
        begin, end = (0, BACKWARD + 1) if rows[0] < of_step[0] else (BACKWARD + 1, missed_s.size)
        missed_s[:begin], missed_s[end:] = np.inf, np.inf
    return missed_s.size - 1 - int(np.argmin(missed_s[::-1]))
