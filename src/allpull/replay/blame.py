"""Charge all waiting to the ranks that were waited for, and to the phases that made them late: delay costs.

A meeting waits for its last rank c, and the waiting of the other ranks is charged to c (as in Böhme, Geimer, Wolf &
Arnold 2010, "Identifying the root causes of wait states", ICPP). The reasons: since all ranks last met, c spent G_p(c)
in phase p, and x_p = max(0, G_p(c) − median of the others). Time that c lost in transfers counts as one more phase.
Waiting is split in proportion to the x. Where these sum to less than the lateness of c against the median of the
others, the difference is unattributed; so is lateness from before the window.

Where only some ranks met in between, c may be late because it waited there. Its waiting beyond that of the others is
passed on to the ranks for which c waited: they caused what c then caused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.engine import EventTimes, event_times
from allpull.replay.leave_one_out import beyond_others, others_median
from allpull.replay.window import REDUCE, STEP, Bools, Window

TRANSFER = "transfer"
"""The key in ``Blame.by_phase`` of lateness that comes from transfers."""
SMALL_S = 100e-6  # some rank is always last by less than this
LOOK_BACK = 32  # meetings of some ranks since all met: waiting in earlier ones is not passed on
CHUNK = 2**20  # cells processed at once: bounds memory to some 100 MB

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blame:
    """Which rank waited for which in a window, in total seconds, and why.

    ``caused_s`` (culprit, victim) sums to what ``delay_s`` does. ``by_phase``: phase of ``WORK``, or ``transfer`` →
    (ranks,) the waiting that this phase of each rank caused; with ``unattributed_s`` (ranks,) they sum to the rows of
    ``caused_s``. ``delay_s`` and ``transfer_s`` (steps, ranks): the time that ranks were blocked, split into what the
    lateness of others cost (``EventTimes.delay_s``) and the rest. ``wait_s`` (steps, ranks): how much of it passed
    before the last rank arrived.

    ``late_s`` (steps, ranks): how much later than the median of the others a rank arrived at the meetings of all ranks
    of a step, summed; below 0: earlier. Where all ranks never meet in a step, its largest meeting counts.
    ``last`` (ranks,): in how many of the ``meetings`` a rank was last by more than the clock error.
    """

    caused_s: Floats
    by_phase: dict[str, Floats]
    unattributed_s: Floats
    delay_s: Floats
    transfer_s: Floats
    wait_s: Floats
    late_s: Floats
    last: NDArray[np.int64]
    meetings: int


def blame(window: Window) -> Blame:
    """Charge the waiting in ``window``; with one rank there is none."""
    times = event_times(window)
    delay_s = times.delay_s(window)
    transfer_s = times.blocked_s - delay_s
    met = np.flatnonzero((times.culprit >= 0) & (times.present.sum(axis=1) > 1))
    sure = met[times.margin_s[met] > max(2 * window.bound_s, SMALL_S)]
    charges = _charges(window, times, delay_s, transfer_s)
    return Blame(
        caused_s=charges.caused_s,
        by_phase=charges.by_phase,
        unattributed_s=charges.unattributed_s,
        delay_s=window.sums(delay_s),
        transfer_s=window.sums(transfer_s),
        wait_s=window.sums(times.wait_s(window)),
        late_s=_late(window, times),
        last=np.bincount(times.culprit[sure], minlength=window.ranks),
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
    """Events in which a rank waited, and from where each is explained; shape (rows,).

    ``since``: the event up to which all is settled, −1 for the begin of the window. ``settled``: all ranks met there,
    so that a rank that left it late did so because of transfers.
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


def _rows(window: Window, times: EventTimes, delay_s: Floats) -> _Late:
    """Causes are sought back to the previous step at most: ranks that never all meet drift apart.

    Of a call that was begun long before it is waited for, ranks do not go on together: one may wait for it later.
    """
    events, slack_s = np.arange(window.events), max(2 * window.bound_s, SMALL_S)
    together = times.everyone & (times.leave_s.min(axis=1) >= times.stand_s.max(axis=1) - slack_s)
    met = np.maximum.accumulate(np.concatenate([[-1], np.where(together, events, -1)]))[:-1]
    ends = np.concatenate([[-1, -1], events[window.kind == STEP]])
    since = np.maximum(met, ends[window.step_of])
    waited = np.flatnonzero(delay_s.any(axis=1))
    return _Late(
        event=waited,
        culprit=times.culprit[waited],
        since=since[waited],
        settled=((since == met) & (met >= 0))[waited],
    )


def _charges(window: Window, times: EventTimes, delay_s: Floats, transfer_s: Floats) -> _Charges:
    late = _rows(window, times, delay_s)
    names = [*window.work, TRANSFER]
    excess_s, before_s, behind_s = _reasons(window, times, late, transfer_s)
    passed = _passed(times, late, delay_s)
    passed_s = np.array([sum(parts.values()) for parts in passed])
    unknown_s = np.maximum(behind_s - excess_s.sum(axis=0) - passed_s - before_s, 0) + before_s
    total_s = excess_s.sum(axis=0) + passed_s + unknown_s
    unknown_s = np.where(total_s > 0, unknown_s, 1.0)
    total_s = np.where(total_s > 0, total_s, 1.0)
    caused_s = np.zeros((window.ranks, window.ranks))
    waits_s = delay_s[late.event]
    for row in reversed([row for row, parts in enumerate(passed) if parts]):
        given_s = np.zeros(window.ranks)
        for other, seconds in passed[row].items():
            part_s = waits_s[row] * (seconds / total_s[row])
            part_s[late.culprit[other]] = 0.0  # nobody waits for itself, also not by way of another rank
            waits_s[other] += part_s
            given_s += part_s
        waits_s[row] -= given_s
    np.add.at(caused_s, late.culprit, waits_s)
    own_s = np.maximum(total_s - passed_s, 0)
    kept = (own_s <= 0) & waits_s.any(axis=1)  # for no reason of its own
    own_s[kept] = unknown_s[kept] = 1.0
    amount_s = np.divide(waits_s.sum(axis=1), own_s, out=np.zeros_like(own_s), where=own_s > 0)

    def charged(seconds: Floats) -> Floats:
        found: Floats = np.bincount(late.culprit, weights=seconds * amount_s, minlength=window.ranks).astype(np.float64)
        return found

    return _Charges(
        caused_s=caused_s,
        by_phase={name: charged(seconds) for name, seconds in zip(names, excess_s, strict=True)},
        unattributed_s=charged(unknown_s),
    )


def _reasons(window: Window, times: EventTimes, late: _Late, transfer_s: Floats) -> tuple[Floats, Floats, Floats]:
    """How much the culprits exceed the others, in s.

    In each phase, and last in transfers, shape (names + 1, rows); in the moment they began, (rows,): at least 0. And in
    the moment they arrived, (rows,).
    """
    excess_s = np.zeros((len(window.work) + 1, late.event.size))
    before_s, behind_s = np.zeros((2, late.event.size))
    left_s = np.concatenate([window.begin_s[None], times.leave_s])
    lead_s = np.where((window.kind == REDUCE)[:, None], times.stand_s - times.arrive_s, 0)
    for key, (name, seconds) in enumerate(window.work.items()):
        total_s = _totals(seconds)
        for rows, present in _chunks(times, late):
            spent_s = late.sums(total_s, rows, itself=True)
            if name == "backward":  # work after the bucket that was waited for made no rank wait
                spent_s = np.maximum(spent_s - lead_s[late.event[rows]], 0)
            excess_s[key, rows] = np.maximum(late.beyond(spent_s, rows, present), 0)
    total_s = _totals(transfer_s)
    for rows, present in _chunks(times, late):
        began_s = left_s[late.since[rows] + 1]
        began_s = began_s - began_s.min(axis=1, keepdims=True)
        settled = late.settled[rows, None]
        transferred_s = late.sums(total_s, rows, itself=False) + np.where(settled, began_s, 0)
        excess_s[-1, rows] = np.maximum(late.beyond(transferred_s, rows, present), 0)
        before_s[rows] = np.maximum(late.beyond(np.where(settled, 0, began_s), rows, present), 0)
        behind_s[rows] = late.beyond(times.arrive_s[late.event[rows]], rows, present)
    return excess_s, before_s, behind_s


def _totals(values: Floats) -> Floats:
    """Sums over all events before one, shape (events + 1, ranks)."""
    return np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])


def _chunks(times: EventTimes, late: _Late) -> Iterator[tuple[slice, Bools]]:
    """Slices of the rows, and which ranks are present in their events."""
    length = max(1, CHUNK // max(1, times.present.shape[1]))
    for first in range(0, late.event.size, length):
        rows = slice(first, first + length)
        yield rows, times.present[late.event[rows]]


def _passed(times: EventTimes, late: _Late, delay_s: Floats) -> list[dict[int, float]]:
    """For each row, the rows before it in which its culprit waited longer than the others, and by how much."""
    total_s = _totals(delay_s)
    waited_s = total_s[late.event, late.culprit] - total_s[late.since + 1, late.culprit]
    passed: list[dict[int, float]] = [{} for _ in late.event]
    for row in np.flatnonzero(waited_s > 0).tolist():
        culprit, event = late.culprit[row], late.event[row]
        between = np.arange(late.since[row] + 1, event)
        between = between[delay_s[between, culprit] > 0][-LOOK_BACK:]
        present = np.broadcast_to(times.present[event], (between.size, delay_s.shape[1]))
        theirs_s = others_median(delay_s[between], np.full(between.size, culprit), present)
        more_s = delay_s[between, culprit] - theirs_s
        rows = np.searchsorted(late.event, between)
        passed[row] = {int(one): float(more) for one, more in zip(rows, more_s, strict=True) if more > 0}
    return passed


def _late(window: Window, times: EventTimes) -> Floats:
    """How late ranks arrived at the meetings of all ranks, shape (steps, ranks)."""
    late_s = np.zeros((window.steps.size, window.ranks))
    if window.ranks == 1:
        return late_s
    present = times.present.sum(axis=1)
    met = np.flatnonzero(times.everyone)
    np.add.at(late_s, window.step_of[met], beyond_others(times.arrive_s[met]))
    for step in np.setdiff1d(np.arange(window.steps.size), window.step_of[met]).tolist():
        events = np.flatnonzero(window.step_of == step)
        largest = events[present[events].argmax()]
        if present[largest] > 1:
            some = times.present[largest]
            late_s[step, some] = beyond_others(times.arrive_s[largest, some][None])[0]
    return late_s
