"""Walk through a window as it was recorded: when each rank came to each event, when it went on, and who was last.

The equations are those at the head of ``analyse.window``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.window import CALL, REDUCE, Bools, Reductions, Window

NOBODY = -1
NO_BUCKET = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walked:
    """The events of a window, moments in s after the first begin; shape (events, ranks) unless they say otherwise.

    ``stand_s`` and ``leave_s``: when a rank is through with its work before an event, and when it goes on.
    ``arrive_s``: when it was there for the others; in a reduction, when it had the ``binding`` bucket ready, the one
    that the end of the reduction follows from. ``present``: it met or waited. ``everyone`` (events,): all ranks met and
    waited for the last. ``culprit`` (events,): that last one to arrive, ``NOBODY`` where none did. ``margin_s``
    (events,): how long after the one before it; 0 of one rank.
    ``reduction`` (events,) row of the reductions, −1 elsewhere; ``binding`` (reductions,).
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
        """How much of that it waited for the last one to arrive ("Wait at N×N", DESIGN §4), shape (events, ranks)."""
        meets = self.arrive_s.max(axis=1, where=window.meets | (window.kind == REDUCE)[:, None], initial=-np.inf)
        until = np.where((window.kind == REDUCE)[:, None], self.arrive_s, self.stand_s)
        waits = window.waits | (window.kind == REDUCE)[:, None]
        wait: Floats = np.where(waits, np.clip(meets[:, None] - until, 0, self.blocked_s), 0)
        return wait


def walk(window: Window) -> Walked:
    """The events of ``window``, and who was late at them."""
    shape = (window.events, window.ranks)
    stand_s, leave_s, lead_s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    reduces = window.kind == REDUCE
    reduction = np.where(reduces, np.cumsum(reduces) - 1, -1)
    lane = window.reductions
    binding = np.zeros(0 if lane is None else lane.seconds.shape[0], dtype=np.intp)
    for event, stood_s, left_s, bucket in moments(window):
        stand_s[event], leave_s[event] = stood_s, left_s
        if lane is not None and bucket != NO_BUCKET:
            place = reduction[event]
            binding[place] = bucket
            lead_s[event] = lane.lead_s[place, bucket]
    arrive_s = np.where(reduces[:, None], stand_s - lead_s, stand_s - window.early_s)
    meets = window.meets | reduces[:, None]
    culprit, margin_s = _last(arrive_s, meets)
    return Walked(
        stand_s=stand_s,
        leave_s=leave_s,
        arrive_s=arrive_s,
        present=meets | window.waits,
        everyone=reduces | (window.meets & window.waits).all(axis=1),
        culprit=np.where(meets.any(axis=1), culprit, NOBODY),
        margin_s=margin_s,
        reduction=reduction,
        binding=binding,
    )


def moments(window: Window, begins_s: Floats | None = None) -> Iterator[tuple[int, Floats, Floats, int]]:
    """Each event with when ranks stand at it and when they go on, (ranks,), and the bucket that its end follows from.

    This is the recurrence at the head of ``analyse.window``: a loop over events, each of them on all ranks at once.
    The bucket is ``NO_BUCKET`` where nothing is reduced. ``begins_s`` (steps, ranks): when ranks begin each step,
    whenever they ended the one before; None: then.
    """
    work_s = total_work_s(window)
    lane = window.reductions
    after_s = None if lane is None else lane_s(lane)
    now_s = window.begin_s.astype(np.float64)
    place, begun = 0, -1
    for event, (kind, step) in enumerate(zip(window.kind.tolist(), window.step_of.tolist(), strict=True)):
        if begins_s is not None and step != begun:
            now_s, begun = begins_s[step], step
        stand_s = now_s + work_s[event]
        now_s, bucket = stand_s, NO_BUCKET
        if kind == CALL:
            now_s = _called(window, event, stand_s)
        elif kind == REDUCE and lane is not None and after_s is not None:
            ended_s = (stand_s - lane.lead_s[place]).max(axis=1) + after_s[place]
            bucket = int(ended_s.argmax())
            now_s = np.maximum(stand_s, ended_s[bucket]) + lane.tail_s[place]
            place += 1
        yield event, stand_s, now_s, bucket


def total_work_s(window: Window) -> Floats:
    """What each rank does before each event, all phases together, in s, shape (events, ranks)."""
    total = np.zeros((window.events, window.ranks))
    for seconds in window.work.values():
        total += seconds
    return total


def lane_s(reductions: Reductions) -> Floats:
    """How long after bucket b can begin the last one ends, were the lane free, shape (reductions, buckets).

    F_b = max(R_b, F_(b−1)) + seconds_b, written out, is F_last = max_b (R_b + Σ_(c≥b) seconds_c); this is the sum.
    """
    after: Floats = np.cumsum(reductions.seconds[:, ::-1], axis=1)[:, ::-1]
    return after


def _called(window: Window, event: int, now_s: Floats) -> Floats:
    """When each rank goes on after the collective ``event``, which it reaches at ``now_s``, shape (ranks,)."""
    transfer_s = window.transfer_s[event]
    last_s = (now_s - window.early_s[event]).max(where=window.meets[event], initial=-np.inf)
    after: Floats = np.where(window.waits[event], np.maximum(now_s, last_s + transfer_s), now_s + transfer_s)
    return after


def _last(arrive_s: Floats, meets: Bools) -> tuple[NDArray[np.intp], Floats]:
    """Who arrived last of those who meet, and how long after the one before; 0 where there is none."""
    among_s = np.where(meets, arrive_s, -np.inf)
    last = among_s.argmax(axis=1)
    if arrive_s.shape[1] == 1:
        return last, np.zeros(arrive_s.shape[0])
    two_s = np.partition(among_s, -2, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):
        margin_s = two_s[:, 1] - two_s[:, 0]
    return last, np.where(np.isfinite(margin_s), margin_s, 0)
