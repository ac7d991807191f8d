"""Replay a recorded window: the one max-plus engine that answers every what-if question.

The equations are those at the head of ``replay.window``. They use two operations, waiting for the later of two moments
and adding a duration, and so are linear in the max-plus algebra (Baccelli, Cohen, Olsder & Quadrat 1992,
"Synchronization and Linearity", §1.2): shortening any duration can make no moment later. Dimemas replays message traces
in the same way on another network; a step of data-parallel training needs no messages for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.collectives.waiting import wait_and_transfer
from allpull.analyse.steps.grid import Floats
from allpull.replay.window import CALL, REDUCE, STEP, Bools, Deliveries, Reductions, Window

NOBODY = -1
NO_BUCKET = -1
CACHED_CELLS = 2**16  # events × ranks that are played at once: an array of so many takes half a MB
FASTER_IN_ORDER = 4  # stretches: one event of some stretches costs as much as so many events in order
BEFORE_INPUT = ("evaluation", "checkpoint")
"""Phases of a step that come before its batch is fetched."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """The steps of a replayed window, in s after the first begin.

    ``end_s`` (steps, ranks): when each rank ends each step. ``step_s`` (steps,): what each step adds to the time at
    which the last rank ends it, ≥ 0; they sum to ``total_s``.
    """

    end_s: Floats
    step_s: Floats

    @property
    def total_s(self) -> float:
        """From the first begin to the last end; 0 where there are no steps."""
        return float(self.end_s[-1].max()) if self.end_s.size else 0.0


def replay(window: Window) -> Replay:
    """When each rank of ``window`` ends each step."""
    end_s = _ends_s(window, None)
    step_s = np.diff(end_s.max(axis=1), prepend=0.0) if end_s.size else np.zeros(window.steps.size)
    return Replay(end_s=end_s, step_s=step_s)


def replay_each(window: Window, begins_s: Floats) -> Floats:
    """When each rank ends each step that it begins at ``begins_s``, both of shape (steps, ranks).

    Every step is replayed on its own: an error in one is not carried into the next.
    """
    return _ends_s(window, begins_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventTimes:
    """The events of a replayed window, in s after the first begin; shape (events, ranks) unless stated otherwise.

    ``stand_s`` and ``leave_s``: when a rank has finished its work before an event, and when it continues. ``arrive_s``:
    when it counts as arrived; in a reduction, when its ``binding`` bucket was ready, the one that determines the end of
    the reduction. ``present``: it met or waited. ``everyone`` (events,): all ranks met and waited for the last.
    ``culprit`` (events,): the last rank to arrive, ``NOBODY`` where none did. ``margin_s`` (events,): how long after
    the one before it; 0 with one rank. ``reduction`` (events,): row of the reductions, −1 elsewhere; ``binding``
    (reductions,).
    """

    stand_s: Floats
    leave_s: Floats
    arrive_s: Floats
    present: Bools
    everyone: Bools
    culprit: NDArray[np.intp]
    margin_s: Floats
    reduction: NDArray[np.intp]
    binding: NDArray[np.intp]

    @property
    def blocked_s(self) -> Floats:
        """How long each rank was blocked."""
        return self.leave_s - self.stand_s

    def wait_s(self, window: Window) -> Floats:
        """How much of that time each rank waited for the last one to arrive, by the one rule; (events, ranks)."""
        reduces = (window.kind == REDUCE)[:, None]
        return self._until_last(window, np.where(reduces, self.stand_s, self.arrive_s), self.stand_s)

    def delay_s(self, window: Window) -> Floats:
        """How much of that time lateness of others cost each rank, (events, ranks).

        In calls that is ``wait_s``. In a reduction it is the time by which its binding bucket was ready later on
        another rank: less than ``wait_s`` where a busy lane hides the lateness, more where it delays all buckets.
        """
        reduces = (window.kind == REDUCE)[:, None]
        return self._until_last(window, self.arrive_s, np.where(reduces, self.arrive_s, self.stand_s))

    def _until_last(self, window: Window, arrived_s: Floats, from_s: Floats) -> Floats:
        """From ``from_s`` to the last of ``arrived_s`` where a rank waits, at most as long as it was blocked."""
        reduces = (window.kind == REDUCE)[:, None]
        last_s = arrived_s.max(axis=1, where=window.meets | reduces, initial=-np.inf)[:, None]
        wait_s, _ = wait_and_transfer(from_s, from_s + self.blocked_s, last_s)
        return np.where(window.waits | reduces, wait_s, 0.0)


def event_times(window: Window) -> EventTimes:
    """When each rank reached and left each event of ``window``, and which rank arrived last."""
    played = moments(window)
    reduces = window.kind == REDUCE
    binding = played.bucket[reduces]
    arrive_s = played.stand_s - window.early_s
    if window.reductions is not None:
        lead_s = window.reductions.lead_s[np.arange(binding.size), binding]
        arrive_s[reduces] = played.stand_s[reduces] - lead_s
    meets = window.meets | reduces[:, None]
    culprit, margin_s = _last(arrive_s, meets)
    return EventTimes(
        stand_s=played.stand_s,
        leave_s=played.leave_s,
        arrive_s=arrive_s,
        present=meets | window.waits,
        everyone=reduces | (window.meets & window.waits).all(axis=1),
        culprit=np.where(meets.any(axis=1), culprit, NOBODY),
        margin_s=margin_s,
        reduction=np.where(reduces, np.cumsum(reduces) - 1, -1),
        binding=binding,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """When ranks reach and leave events: ``stand_s`` and ``leave_s`` (events, ranks), in s after the first begin.

    ``bucket`` (events,): the one that determines the end of a reduction, ``NO_BUCKET`` where nothing is reduced.
    """

    stand_s: Floats
    leave_s: Floats
    bucket: NDArray[np.intp]


def moments(window: Window, begins_s: Floats | None = None) -> Moments:
    """The recurrence at the head of ``replay.window``, from event to event, for all ranks at once.

    All ranks leave a reduction a ``tail_s`` after the end of its last bucket, whatever was before. So the stretch of
    events from one reduction to the next lasts as long as it would by itself: stretches are played side by side, and
    put one behind the other then. Only the batches of loaders at their limit depend on each other across reductions.

    ``begins_s`` (steps, ranks): when ranks begin each step, whatever the end of the step before; None: at that end.
    """
    shape = (window.events, window.ranks)
    none = np.full(window.events, NO_BUCKET, dtype=np.intp)
    played = Moments(stand_s=np.empty(shape), leave_s=np.empty(shape), bucket=none)
    has_limits = begins_s is None and window.deliveries is not None and "input" in window.work
    stretches = _between_reductions(window) if begins_s is None else _steps(window, begins_s)
    if has_limits or stretches.are_few:
        _play_in_order(window, played, stretches.begin_s)
    else:
        _play_side_by_side(window, played, stretches)
    return played


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stretches:
    """Parts of a window, each of which can be played by itself.

    ``first`` (stretches,): the event that each begins with; ``lengths`` (stretches,): how many events it has.
    ``begin_s`` (stretches, ranks): when ranks begin it; where stretches ``follow`` each other, all but the first count
    from the end of the last bucket before.
    """

    first: NDArray[np.intp]
    lengths: NDArray[np.intp]
    begin_s: Floats
    follow: bool

    @property
    def are_few(self) -> bool:
        """Whether they follow each other and so few are equally long that it is faster to play them in order."""
        return self.follow and bool(FASTER_IN_ORDER * np.unique(self.lengths).sum() > self.lengths.sum())


def _between_reductions(window: Window) -> _Stretches:
    begin_s = window.begin_s.astype(np.float64)[None]
    first = np.zeros(1, dtype=np.intp)
    if window.reductions is not None:
        first = np.append(first, np.flatnonzero(window.kind == REDUCE) + 1)
        begin_s = np.concatenate([begin_s, window.reductions.tail_s])
    inside = first < window.events
    first = first[inside]
    lengths = np.diff(first, append=window.events)
    return _Stretches(first=first, lengths=lengths, begin_s=begin_s[inside], follow=True)


def _steps(window: Window, begins_s: Floats) -> _Stretches:
    first = np.flatnonzero(np.diff(window.step_of, prepend=-1))
    lengths = np.diff(first, append=window.events)
    return _Stretches(first=first, lengths=lengths, begin_s=begins_s[window.step_of[first]], follow=False)


def _play_side_by_side(window: Window, played: Moments, stretches: _Stretches) -> None:
    """Fill ``played``, some stretches of equally many events at a time: as many as a cache holds."""
    lane = window.reductions
    after_s = None if lane is None else lane_s(lane)
    reduction, follows, present = np.cumsum(window.kind == REDUCE) - 1, window.follows, window.present
    ended_s = np.zeros(stretches.first.size)
    most = max(1, CACHED_CELLS // max(1, window.ranks))
    for length in np.unique(stretches.lengths).tolist():
        alike = np.flatnonzero(stretches.lengths == length)
        for some in (alike[begin : begin + most] for begin in range(0, alike.size, most)):
            now_s = stretches.begin_s[some]
            called_s = np.full_like(now_s, -np.inf)
            for events in stretches.first[some] + np.arange(length)[:, None]:
                now_s = now_s + sum(seconds[events] for seconds in window.work.values())
                played.stand_s[events] = now_s
                kinds = window.kind[events]
                calls, reduces = kinds == CALL, kinds == REDUCE
                if calls.any():
                    free_s = np.where(follows[events[calls]], called_s[calls], -np.inf)
                    call_s = _called(window, events[calls], now_s[calls], free_s)
                    called_s[calls] = np.where(present[events[calls]], call_s, called_s[calls])
                    now_s[calls] = np.maximum(now_s[calls], call_s)
                if lane is not None and after_s is not None and reduces.any():
                    place = reduction[events[reduces]]
                    bucket, end_s = _reduced(now_s[reduces], lane.lead_s[place], after_s[place])
                    now_s[reduces] = end_s[:, None] + lane.tail_s[place]
                    played.bucket[events[reduces]], ended_s[some[reduces]] = bucket, end_s
                played.leave_s[events] = now_s
    if stretches.follow:
        begun_s = np.append(0.0, np.cumsum(ended_s))[:-1].repeat(stretches.lengths)[:, None]
        np.add(played.stand_s, begun_s, out=played.stand_s)
        np.add(played.leave_s, begun_s, out=played.leave_s)


def _play_in_order(window: Window, played: Moments, begin_s: Floats) -> None:
    """Fill ``played``, one event after the other; the ranks begin the first at ``begin_s[0]``."""
    lane, loaders = window.reductions, window.deliveries
    after_s = None if lane is None else lane_s(lane)
    batches = None if loaders is None or "input" not in window.work else _Batches(window, loaders)
    work_s, follows, present = total_work_s(window), window.follows, window.present
    of_all = bool(present[window.kind == CALL].all())
    after = follows[:, 0].tolist()
    now_s, called_s, place = begin_s[0], begin_s[0], 0
    for event, kind in enumerate(window.kind.tolist()):
        stand_s = now_s + work_s[event]
        if batches is not None and batches.loaders.fetches[event]:
            fetched_s = now_s + fetch_work_s(window, event)
            stand_s = stand_s + (batches.taken_s(event, fetched_s) - fetched_s)
        now_s = stand_s
        if kind == CALL:
            if of_all:
                called_s = _called(window, event, stand_s, called_s if after[event] else -np.inf)
                now_s = np.maximum(stand_s, called_s)
            else:
                call_s = _called(window, event, stand_s, np.where(follows[event], called_s, -np.inf))
                called_s, now_s = np.where(present[event], call_s, called_s), np.maximum(stand_s, call_s)
        elif kind == REDUCE and lane is not None and after_s is not None:
            played.bucket[event], end_s = _reduced(stand_s, lane.lead_s[place], after_s[place])
            now_s = end_s + lane.tail_s[place]
            place += 1
        played.stand_s[event], played.leave_s[event] = stand_s, now_s


def _ends_s(window: Window, begins_s: Floats | None) -> Floats:
    ends = window.kind == STEP
    end_s = np.zeros((window.steps.size, window.ranks))
    end_s[window.step_of[ends]] = moments(window, begins_s).leave_s[ends]
    return end_s


def total_work_s(window: Window) -> Floats:
    """Work of each rank before each event, all phases together, in s, shape (events, ranks)."""
    total = np.zeros((window.events, window.ranks))
    for seconds in window.work.values():
        total += seconds
    return total


def fetch_work_s(window: Window, event: int) -> Floats:
    """Work of each rank before ``event`` until it has its batch, in s, shape (ranks,)."""
    phases = (window.work[name][event] for name in (*BEFORE_INPUT, "input") if name in window.work)
    return sum(phases, start=np.zeros(window.ranks))


class _Batches:
    """When ranks have the batches of a window, one after the other, by the equations at the head of ``replay.window``.

    ``_taken_s`` (steps, ranks); ``_made_s`` (ranks,): when the last one was made.
    """

    def __init__(self, window: Window, loaders: Deliveries) -> None:
        self.loaders = loaders
        self._steps, self._input_s = window.step_of, window.work["input"]
        self._taken_s = np.full((window.steps.size, window.ranks), -np.inf)
        self._made_s, self._has_begun = np.full(window.ranks, -np.inf), False

    def taken_s(self, event: int, fetched_s: Floats) -> Floats:
        """When each rank has the batch that it would have at ``fetched_s`` by its recorded wait, both (ranks,)."""
        loaders, step = self.loaders, int(self._steps[event])
        before_s = self._taken_s[step - loaders.workers] if step >= loaders.workers else 0.0
        made_s = self._made(step, fetched_s)
        limit_s = np.where(loaders.period_s[step] > 0, before_s + loaders.period_s[step], made_s)
        is_as_recorded = self._input_s[event] == loaders.input_s[event]
        taken_s: Floats = np.where(is_as_recorded, np.maximum(fetched_s, limit_s), fetched_s)
        self._taken_s[step] = taken_s
        return taken_s

    def _made(self, step: int, fetched_s: Floats) -> Floats:
        """When workers have made the batch of ``step``; of loaders that begin anew, when it is there."""
        making = self.loaders.making
        if making is not None and (making.fresh[step] or not self._has_begun):
            self._made_s = fetched_s if making.fresh[step] else fetched_s - making.lead_s
            self._has_begun = True
        elif making is not None:
            begun_s = self._taken_s[step - making.ahead] if step >= making.ahead else -np.inf
            self._made_s = np.maximum(self._made_s + making.step_s, begun_s + making.batch_s)
        return self._made_s


def lane_s(reductions: Reductions) -> Floats:
    """From the start of bucket b to the end of the last one if nothing else blocks them, shape (reductions, buckets).

    F_b = max(R_b, F_(b−1)) + seconds_b, written out, is F_last = max_b (R_b + Σ_(c≥b) seconds_c); this is the sum.
    """
    after: Floats = np.cumsum(reductions.seconds[:, ::-1], axis=1)[:, ::-1]
    return after


def _called(window: Window, event: NDArray[np.intp] | int, now_s: Floats, free_s: Floats | float) -> Floats:
    """When the collective ``event`` ends for each rank, which reaches it at ``now_s``, maybe later; shape (…, ranks).

    ``free_s``: when the call that this one follows ended for it; −∞: it follows none.
    """
    transfer_s, meets = window.transfer_s[event], window.meets[event]
    last_s = (now_s - window.early_s[event]).max(axis=-1, where=meets, initial=-np.inf, keepdims=True)
    ended_s: Floats = np.where(window.waits[event], np.maximum(last_s, free_s), now_s) + transfer_s
    return ended_s


def _reduced(stand_s: Floats, lead_s: Floats, after_s: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The bucket that determines when a reduction ends, and that end, which no rank reaches later, shape (…,).

    ``stand_s`` (…, ranks): when ranks have finished backward; ``lead_s`` (…, buckets, ranks), ``after_s`` (…, buckets).
    """
    ended_s = (stand_s[..., None, :] - lead_s).max(axis=-1) + after_s
    return ended_s.argmax(axis=-1), ended_s.max(axis=-1)


def _last(arrive_s: Floats, meets: Bools) -> tuple[NDArray[np.intp], Floats]:
    """Which of the meeting ranks arrived last, and how long after the one before; 0 where there is none."""
    among_s = np.where(meets, arrive_s, -np.inf)
    last = among_s.argmax(axis=1)
    if arrive_s.shape[1] == 1:
        return last, np.zeros(arrive_s.shape[0])
    two_s = np.partition(among_s, -2, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):
        margin_s = two_s[:, 1] - two_s[:, 0]
    return last, np.where(np.isfinite(margin_s), margin_s, 0)
