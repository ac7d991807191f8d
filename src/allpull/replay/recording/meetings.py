"""Put the meetings of a window into one order, with the moments when each rank reached and left each of them.

Events are the matched calls of collectives, the reductions of gradients and the ends of steps; within a step they are
in the order in which the last rank reached them. A call in which a rank was blocked is where the rank began to wait;
it may have arrived long before (``early``). Which rank waits for which: ``analyse.collectives.waiting``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.collectives import waiting
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording.calls import ABSENT, Calls, Moments, Places
from allpull.replay.window import CALL, REDUCE, STEP, Bools, following_calls

MOVED_S = 1e-6  # stamps of two kinds may differ so far without a contradiction
OVER_S = 100e-6  # who is blocked for less found the call over: so long takes Python to see that


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """The events of a window as they were recorded; names as in ``replay.window``, shape (events, ranks).

    ``stand_s`` and ``leave_s``: when a rank has finished its work before an event, and when it continues, in s after
    the first begin. A rank that takes no part in an event does both when it leaves the one before. ``inside``: as in
    ``Calls``, and ``ABSENT`` in other events. ``moved`` counts how often a rank seemed to be in two events at once.
    """

    kind: NDArray[np.int8]
    step_of: NDArray[np.intp]
    use: NDArray[np.intp]
    stand_s: Floats
    leave_s: Floats
    meets: Bools
    waits: Bools
    early_s: Floats
    transfer_s: Floats
    inside: Places
    moved: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Line:
    """All events in order: ``places`` index the calls, then reductions, then steps, in the order they were given."""

    kind: NDArray[np.int8]
    step_of: NDArray[np.intp]
    places: NDArray[np.intp]

    @property
    def is_call(self) -> Bools:
        """Which of them are calls."""
        is_call: Bools = self.kind == CALL
        return is_call


def order_events(recorded: Moments, calls: Calls, slack_s: float) -> Events:
    """The events of the steps ``of`` and of ``calls``, whose moments compare to within ``slack_s``."""
    line = _line(recorded, calls)
    appended = (line.kind.size - calls.step_of.size, recorded.end_s.shape[1])
    member = np.concatenate([calls.member, np.ones(appended, dtype=np.bool_)])[line.places]
    stand_s = np.concatenate([calls.stand_s, recorded.reductions.arrival_s, recorded.end_s])[line.places]
    leave_s = np.concatenate([calls.leave_s, recorded.reductions.done_s, recorded.end_s])[line.places]
    stand_s, leave_s, moved = _one_after_another(recorded, line.step_of, member, stand_s, leave_s)
    meets, waits = np.zeros_like(member), np.zeros_like(member)
    early_s, transfer_s = np.zeros_like(stand_s), np.zeros_like(stand_s)
    at, own = line.is_call, line.places[line.is_call]
    arrive_s = np.minimum(calls.arrive_s[own], stand_s[at])
    meets[at], waits[at], transfer_s[at] = _met(calls, own, (arrive_s, stand_s[at], leave_s[at]), slack_s)
    early_s[at] = np.where(meets[at], stand_s[at] - arrive_s, 0)
    _over(waits, early_s, stand_s, leave_s, transfer_s)
    use = np.concatenate([calls.use, np.full(appended[0], -1)])[line.places]
    arrived_s = np.where(meets, stand_s - early_s, -np.inf)
    _apart(line.kind, use, waits, arrived_s, (stand_s, leave_s, transfer_s))
    return Events(
        kind=line.kind,
        step_of=line.step_of,
        use=use,
        stand_s=stand_s,
        leave_s=leave_s,
        meets=meets,
        waits=waits,
        early_s=early_s,
        transfer_s=transfer_s,
        inside=np.concatenate([calls.inside, np.full(appended, ABSENT, dtype=np.int8)])[line.places],
        moved=moved,
    )


def _over(waits: Bools, early_s: Floats, stand_s: Floats, leave_s: Floats, transfer_s: Floats) -> None:
    """Shorten the transfers of asynchronous calls that were over when a rank ``waits`` for them, (events, ranks).

    When such a call ended is not known: on no rank later than on the one that saw it over soonest after the last
    arrival. Changes ``leave_s`` and ``transfer_s``.
    """
    is_over = waits & (early_s > OVER_S) & (leave_s - stand_s < OVER_S)
    soonest_s = np.where(waits, transfer_s, np.inf).min(axis=1, keepdims=True)
    leave_s[is_over] = stand_s[is_over]
    transfer_s[:] = np.where(is_over, np.minimum(transfer_s, soonest_s), transfer_s)


def _apart(
    kind: NDArray[np.int8],
    use: NDArray[np.intp],
    waits: Bools,
    arrive_s: Floats,
    moments: tuple[Floats, Floats, Floats],
) -> None:
    """Take from the transfers of calls that follow another one what is of the calls before, all (events, ranks).

    Each begins when the last rank has arrived, ``arrive_s`` (−∞: no part in it), and the call before has ended. An
    asynchronous one that was over when a rank ``waits`` for it may have been so for long: it takes nothing, and what
    the rank needs to see that is its work. ``moments``: ``stand_s``, ``leave_s`` and ``transfer_s``, of which the last
    two change. Where ranks meet in groups, each has calls of its own before it.
    """
    stand_s, leave_s, _ = moments
    present = np.isfinite(arrive_s) | waits | (kind != CALL)[:, None]
    last_s = arrive_s.max(axis=1)
    is_over = waits & (leave_s - stand_s < OVER_S) & (stand_s - arrive_s > MOVED_S)
    follows = following_calls(kind, use, present)
    group = np.unique(np.packbits(present, axis=0), axis=1, return_inverse=True)[1].ravel()  # of each rank
    for ranks in (np.flatnonzero(group == one) for one in range(group.max() + 1)):
        its = np.flatnonzero(present[:, ranks[0]])
        cells = np.s_[:, :] if its.size * ranks.size == present.size else np.ix_(its, ranks)  # else a copy of all
        parts = tuple(of_all[cells] for of_all in moments)
        _take_apart(follows[cells][:, 0], waits[cells], is_over[cells], last_s[its, None], parts)
        for of_all, changed in zip(moments, parts, strict=True):
            of_all[cells] = changed


def _take_apart(follows: Bools, waits: Bools, is_over: Bools, last_s: Floats, moments: tuple[Floats, ...]) -> None:
    """As ``_apart``, for ranks that take part in all of the events; ``follows`` (events,), ``last_s`` (events, 1)."""
    stand_s, leave_s, transfer_s = moments
    ended_s = np.where(waits, last_s + transfer_s, leave_s)
    at = np.flatnonzero(follows)
    depth = at - np.maximum.accumulate(np.where(~follows, np.arange(follows.size), 0))[at]
    for level in np.unique(depth):
        some = at[depth == level]
        begun_s = np.maximum(last_s[some], ended_s[some - 1])
        over = is_over[some]
        leave_s[some] = np.where(over, stand_s[some], leave_s[some])
        alone_s = np.where(over, 0.0, np.maximum(leave_s[some] - begun_s, 0.0))
        transfer_s[some] = np.where(waits[some], alone_s, transfer_s[some])
        ended_s[some] = np.where(waits[some], begun_s + alone_s, leave_s[some])


def _line(recorded: Moments, calls: Calls) -> _Line:
    reduced = recorded.reductions.step_of
    steps = recorded.end_s.shape[0]
    came_s = np.where(calls.member, calls.stand_s, -np.inf).max(axis=1, initial=-np.inf)
    arrived_s = recorded.reductions.arrival_s.max(axis=1, initial=-np.inf)
    in_order_s = np.maximum.accumulate(arrived_s) if arrived_s.size else arrived_s
    arrived_s = np.where(recorded.reductions.place > 0, in_order_s, arrived_s)  # those of a step keep their order
    kind = np.repeat(np.array([CALL, REDUCE, STEP], dtype=np.int8), (calls.step_of.size, reduced.size, steps))
    step_of = np.concatenate([calls.step_of, reduced, np.arange(steps)])
    places = np.lexsort((np.concatenate([came_s, arrived_s, np.full(steps, np.inf)]), step_of))
    return _Line(kind=kind[places], step_of=step_of[places].astype(np.intp), places=places)


def _one_after_another(
    recorded: Moments, step_of: NDArray[np.intp], member: Bools, stand_s: Floats, leave_s: Floats
) -> tuple[Floats, Floats, int]:
    """``stand_s`` and ``leave_s`` clipped so that each rank's events do not overlap and lie within their step.

    Also returns how many were clipped by more than ``MOVED_S``.
    """
    until_s = recorded.end_s[step_of]
    left_s = np.where(member, np.minimum(leave_s, until_s), -np.inf)
    free_s = np.maximum.accumulate(np.concatenate([recorded.begin_s[:1], left_s[:-1]]), axis=0)
    stands_s = np.where(member, np.clip(stand_s, free_s, until_s), free_s)
    leaves_s = np.where(member, np.maximum(left_s, stands_s), free_s)
    strange = member & ((np.abs(stands_s - stand_s) > MOVED_S) | (np.abs(leaves_s - leave_s) > MOVED_S))
    return stands_s, leaves_s, int(strange.sum())


def _met(
    calls: Calls, places: NDArray[np.intp], when: tuple[Floats, Floats, Floats], slack_s: float
) -> tuple[Bools, Bools, Floats]:
    """Which ranks meet in the calls at ``places``, which wait, and the transfer, each of shape (places, ranks).

    ``when``: the moments when ranks arrived, began to be blocked, and left.
    """
    member = calls.member[places]
    call, rank = np.nonzero(member)
    arrived_s, stood_s, left_s = (moments_s[call, rank] for moments_s in when)
    entries = waiting.Calls(
        call=call,
        arrive=arrived_s,
        begin=stood_s,
        end=left_s,
        blocks=calls.blocks[places][call, rank],
        is_root=rank == calls.root[places][call],
        direction=calls.direction[places][call],
    )
    met = waiting.met(entries, slack=slack_s, rounding=waiting.ROUNDING_S)
    meets, waits, transfer_s = np.zeros_like(member), np.zeros_like(member), np.zeros(member.shape)
    meets[call, rank], waits[call, rank] = met.meets, met.waits
    transfer_s[call, rank] = waiting.transfer(entries, met.waits, met.last)
    return meets, waits, transfer_s
