"""Charge all waiting to those who were waited for, and to what made them late: delay costs.

A meeting waits for its last rank c, and the others' waiting is charged to c (as in Böhme, Geimer, Wolf & Arnold 2010,
"Identifying the root causes of wait states", ICPP). Why c was late: since all ranks last met, phase p took it G_p(c),
and x_p = max(0, G_p(c) − median of the others). What c lost in transfers meanwhile counts as one more phase. Waiting is
split in proportion to the x. Where these sum to less than what c came after the median of the others, the rest is
unattributed; and so is lateness from before the window.

Where only some ranks met in between, c may be late because it waited there. What exceeds the others' waiting is passed
on to those for whom c waited: they caused what c then caused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.leave_one_out import beyond_others, others_median
from allpull.replay.walk import Walked, walk
from allpull.replay.window import REDUCE, STEP, Bools, Window

TRANSFER = "transfer"
"""The key in ``Blame.by_phase`` of lateness that comes from transfers."""
SMALL_S = 100e-6  # by less than this somebody is always last
LOOK_BACK = 32  # meetings of some ranks since all met: what was waited for in earlier ones is not passed on
CHUNK = 2**20  # cells looked at together: bounds memory to some 100 MB

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blame:
    """Who waited for whom in a window, in total seconds, and why.

    ``caused_s`` (culprit, victim) sums to what ``wait_s`` does. ``by_phase``: phase of ``WORK``, or ``transfer`` →
    (ranks,) the waiting that this phase of theirs caused; with ``unattributed_s`` (ranks,) they sum to the rows of
    ``caused_s``. ``wait_s`` and ``transfer_s`` (steps, ranks): what ranks were blocked, split.

    ``late_s`` (steps, ranks): how much later than the median of the others a rank came to the meetings of all in a
    step, taken together; below 0: earlier. Where not all meet in a step, its largest meeting stands for them.
    ``last`` (ranks,): in how many of the ``meetings`` a rank was last by more than the clocks may be wrong.
    """

    caused_s: Floats
    by_phase: dict[str, Floats]
    unattributed_s: Floats
    wait_s: Floats
    transfer_s: Floats
    late_s: Floats
    last: NDArray[np.int64]
    meetings: int


def blame(window: Window) -> Blame:
    """Charge the waiting in ``window``; of one rank there is none."""
    walked = walk(window)
    wait_s = walked.wait_s(window)
    transfer_s = walked.blocked_s - wait_s
    of_steps = np.zeros((2, window.steps.size, window.ranks))
    np.add.at(of_steps[0], window.step_of, wait_s)
    np.add.at(of_steps[1], window.step_of, transfer_s)
    met = np.flatnonzero((walked.culprit >= 0) & (walked.present.sum(axis=1) > 1))
    sure = met[walked.margin_s[met] > max(2 * window.bound_s, SMALL_S)]
    charges = _charges(window, walked, wait_s, transfer_s)
    return Blame(
        caused_s=charges.caused_s,
        by_phase=charges.by_phase,
        unattributed_s=charges.unattributed_s,
        wait_s=of_steps[0],
        transfer_s=of_steps[1],
        late_s=_late(window, walked),
        last=np.bincount(walked.culprit[sure], minlength=window.ranks),
        meetings=met.size,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Charges:
    """As in ``Blame``."""

    caused_s: Floats
    by_phase: dict[str, Floats]
    unattributed_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Late:
    """Events in which somebody waited, and what to look back upon from each of them; shape (rows,).

    ``since``: the event before which all is settled, −1 for the begin of the window. ``settled``: all ranks met there,
    so that who left it late did so for transfers.
    """

    event: Rows
    culprit: Rows
    since: Rows
    settled: Bools

    def beyond(self, values: Floats, rows: slice, present: Bools) -> Floats:
        """By how much the culprits of ``rows`` exceed the others that are ``present`` there; shape (rows,)."""
        culprit = self.culprit[rows]
        own: Floats = np.take_along_axis(values, culprit[:, None], axis=1)[:, 0]
        return own - others_median(values, culprit, present)

    def sums(self, total: Floats, rows: slice, *, itself: bool) -> Floats:
        """What was added to ``total`` (``_totals``) from ``since`` to the event, with or without ``itself``."""
        found: Floats = total[self.event[rows] + itself] - total[self.since[rows] + 1]
        return found


def _rows(window: Window, walked: Walked, wait_s: Floats) -> _Late:
    """The past begins with the step before, at the earliest: ranks that never all meet drift apart."""
    events = np.arange(window.events)
    met = np.maximum.accumulate(np.concatenate([[-1], np.where(walked.everyone, events, -1)]))[:-1]
    ends = np.concatenate([[-1, -1], events[window.kind == STEP]])
    since = np.maximum(met, ends[window.step_of])
    waited = np.flatnonzero(wait_s.any(axis=1))
    return _Late(
        event=waited,
        culprit=walked.culprit[waited],
        since=since[waited],
        settled=((since == met) & (met >= 0))[waited],
    )


def _charges(window: Window, walked: Walked, wait_s: Floats, transfer_s: Floats) -> _Charges:
    late = _rows(window, walked, wait_s)
    names = [*window.work, TRANSFER]
    excess_s, before_s, behind_s = _reasons(window, walked, late, transfer_s)
    passed = _passed(walked, late, wait_s)
    passed_s = np.array([sum(parts.values()) for parts in passed])
    unknown_s = np.maximum(behind_s - excess_s.sum(axis=0) - passed_s - before_s, 0) + before_s
    total_s = excess_s.sum(axis=0) + passed_s + unknown_s
    unknown_s = np.where(total_s > 0, unknown_s, 1.0)
    total_s = np.where(total_s > 0, total_s, 1.0)
    caused_s = np.zeros((window.ranks, window.ranks))
    waits_s = wait_s[late.event]
    for row in reversed([row for row, parts in enumerate(passed) if parts]):
        for other, seconds in passed[row].items():
            waits_s[other] += waits_s[row] * (seconds / total_s[row])
        waits_s[row] *= 1 - passed_s[row] / total_s[row]
    np.add.at(caused_s, late.culprit, waits_s)
    own_s = np.maximum(total_s - passed_s, 0)
    amount_s = np.divide(waits_s.sum(axis=1), own_s, out=np.zeros_like(own_s), where=own_s > 0)

    def charged(seconds: Floats) -> Floats:
        found: Floats = np.bincount(late.culprit, weights=seconds * amount_s, minlength=window.ranks).astype(np.float64)
        return found

    return _Charges(
        caused_s=caused_s,
        by_phase={name: charged(seconds) for name, seconds in zip(names, excess_s, strict=True)},
        unattributed_s=charged(unknown_s),
    )


def _reasons(window: Window, walked: Walked, late: _Late, transfer_s: Floats) -> tuple[Floats, Floats, Floats]:
    """How much the culprits exceed the others, in s.

    In each phase, and last in transfers, shape (names + 1, rows); in what they began with, (rows,): 0 at the least.
    And in when they arrived, (rows,).
    """
    excess_s = np.zeros((len(window.work) + 1, late.event.size))
    before_s, behind_s = np.zeros((2, late.event.size))
    left_s = np.concatenate([window.begin_s[None], walked.leave_s])
    lead_s = np.where((window.kind == REDUCE)[:, None], walked.stand_s - walked.arrive_s, 0)
    for key, (name, seconds) in enumerate(window.work.items()):
        total_s = _totals(seconds)
        for rows, present in _chunks(walked, late):
            spent_s = late.sums(total_s, rows, itself=True)
            if name == "backward":  # what comes after the bucket that was waited for made nobody wait
                spent_s = np.maximum(spent_s - lead_s[late.event[rows]], 0)
            excess_s[key, rows] = np.maximum(late.beyond(spent_s, rows, present), 0)
    total_s = _totals(transfer_s)
    for rows, present in _chunks(walked, late):
        began_s = left_s[late.since[rows] + 1]
        began_s = began_s - began_s.min(axis=1, keepdims=True)
        settled = late.settled[rows, None]
        transferred_s = late.sums(total_s, rows, itself=False) + np.where(settled, began_s, 0)
        excess_s[-1, rows] = np.maximum(late.beyond(transferred_s, rows, present), 0)
        before_s[rows] = np.maximum(late.beyond(np.where(settled, 0, began_s), rows, present), 0)
        behind_s[rows] = late.beyond(walked.arrive_s[late.event[rows]], rows, present)
    return excess_s, before_s, behind_s


def _totals(values: Floats) -> Floats:
    """Sums over all events before one, shape (events + 1, ranks)."""
    return np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])


def _chunks(walked: Walked, late: _Late) -> Iterator[tuple[slice, Bools]]:
    """Rows in turn, and who is present in their events."""
    length = max(1, CHUNK // max(1, walked.present.shape[1]))
    for first in range(0, late.event.size, length):
        rows = slice(first, first + length)
        yield rows, walked.present[late.event[rows]]


def _passed(walked: Walked, late: _Late, wait_s: Floats) -> list[dict[int, float]]:
    """Of each row the rows before it in which its culprit waited longer than the others, and how much longer."""
    total_s = _totals(wait_s)
    waited_s = total_s[late.event, late.culprit] - total_s[late.since + 1, late.culprit]
    found: list[dict[int, float]] = [{} for _ in late.event]
    for row in np.flatnonzero(waited_s > 0).tolist():
        culprit, event = late.culprit[row], late.event[row]
        between = np.arange(late.since[row] + 1, event)
        between = between[wait_s[between, culprit] > 0][-LOOK_BACK:]
        present = np.broadcast_to(walked.present[event], (between.size, wait_s.shape[1]))
        theirs_s = others_median(wait_s[between], np.full(between.size, culprit), present)
        more_s = wait_s[between, culprit] - theirs_s
        rows = np.searchsorted(late.event, between)
        found[row] = {int(one): float(more) for one, more in zip(rows, more_s, strict=True) if more > 0}
    return found


def _late(window: Window, walked: Walked) -> Floats:
    """How late ranks came to the meetings of all, shape (steps, ranks)."""
    late_s = np.zeros((window.steps.size, window.ranks))
    if window.ranks == 1:
        return late_s
    present = walked.present.sum(axis=1)
    met = np.flatnonzero(walked.everyone)
    np.add.at(late_s, window.step_of[met], beyond_others(walked.arrive_s[met]))
    for step in np.setdiff1d(np.arange(window.steps.size), window.step_of[met]).tolist():
        events = np.flatnonzero(window.step_of == step)
        largest = events[present[events].argmax()]
        if present[largest] > 1:
            some = walked.present[largest]
            late_s[step, some] = beyond_others(walked.arrive_s[largest, some][None])[0]
    return late_s
