"""An independent oracle of the replay: ranks, meetings and the lane of buckets as a discrete-event simulation.

It shares no equation with ``allpull.replay.engine``. Things happen one at a time, in the order of their moments: a rank
reaches a meeting, a bucket becomes ready on a rank, the lane finishes a bucket. Slow on purpose: use it for small
windows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.window import CALL, REDUCE, STEP, Window

SLACK_S = 1e-9  # sums of floats in another order may seem to go back in time by this


@dataclass
class _Meeting:
    """Who of a call has arrived, who stands blocked in it, and when the last one arrived."""

    missing: set[int]
    last_s: float = 0.0
    blocked: list[int] = field(default_factory=list)


@dataclass
class _Lane:
    """The buckets of one reduction: on how many ranks each is still missing, and which is next on the lane."""

    missing: list[int]
    next: int = 0
    busy: bool = False
    ended_s: float | None = None
    blocked: list[int] = field(default_factory=list)


class Simulation:
    """One pass through a window, event by event; ``end_s`` (steps, ranks) is what comes out."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.now_s = 0.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.filed = 0
        self.end_s = np.zeros((window.steps.size, window.ranks))
        self.over_s = np.full((window.events, window.ranks), -np.inf)
        self.work_s = sum(window.work.values(), np.zeros((window.events, window.ranks)))
        reduce = window.kind == REDUCE
        self.reduction_of = np.where(reduce, np.cumsum(reduce) - 1, -1)
        self.meetings = {event: _Meeting(set(np.flatnonzero(window.meets[event]))) for event in self._of(CALL)}
        buckets = 0 if window.reductions is None else window.reductions.buckets
        self.lanes = {event: _Lane([window.ranks] * buckets) for event in self._of(REDUCE)}

    def run(self) -> Floats:
        for rank in range(self.window.ranks):
            self._at(float(self.window.begin_s[rank]), lambda rank=rank: self._work(rank, 0))
        while self.agenda:
            at_s, _, what = heapq.heappop(self.agenda)
            assert at_s >= self.now_s - SLACK_S, "a bucket or an arrival lies before the work that leads to it"
            self.now_s = max(at_s, self.now_s)
            what()
        return self.end_s

    def _of(self, kind: int) -> list[int]:
        return np.flatnonzero(self.window.kind == kind).tolist()

    def _at(self, moment_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (moment_s, self.filed, what))
        self.filed += 1

    def _work(self, rank: int, event: int) -> None:
        """``rank`` has left the event before ``event`` and works until it."""
        if event == self.window.events:
            return
        until_s = self.now_s + float(self.work_s[event, rank])
        kind = int(self.window.kind[event])
        if kind == CALL and self.window.meets[event, rank]:
            early_s = float(self.window.early_s[event, rank])
            self._at(until_s - early_s, lambda: self._arrive(event, rank))
        if kind == REDUCE:
            assert self.window.reductions is not None
            leads_s = self.window.reductions.lead_s[self.reduction_of[event], :, rank]
            for bucket, lead_s in enumerate(leads_s):
                self._at(until_s - float(lead_s), lambda bucket=bucket: self._ready(event, bucket))
        self._at(until_s, lambda: self._reach(rank, event))

    def _reach(self, rank: int, event: int) -> None:
        kind = int(self.window.kind[event])
        if kind == STEP:
            self.end_s[self.window.step_of[event], rank] = self.now_s
            self._work(rank, event + 1)
        elif kind == REDUCE:
            lane = self.lanes[event]
            if lane.ended_s is None:
                lane.blocked.append(rank)
            else:
                self._leave_lane(rank, event)
        elif not self.window.waits[event, rank]:
            self.over_s[event, rank] = self.now_s + float(self.window.transfer_s[event, rank])
            self._at(self.over_s[event, rank], lambda: self._work(rank, event + 1))
        else:
            meeting = self.meetings[event]
            if meeting.missing:
                meeting.blocked.append(rank)
            else:
                self._leave_call(rank, event)

    def _arrive(self, event: int, rank: int) -> None:
        meeting = self.meetings[event]
        meeting.missing.discard(rank)
        meeting.last_s = self.now_s
        if not meeting.missing:
            for blocked in meeting.blocked:
                self._leave_call(blocked, event)

    def _leave_call(self, rank: int, event: int) -> None:
        starts_s = self.meetings[event].last_s
        before = event - 1
        if before >= 0 and self.window.kind[before] == CALL and self.window.use[before] == self.window.use[event]:
            starts_s = max(starts_s, self.over_s[before, rank])  # the network was busy with the call before
        self.over_s[event, rank] = starts_s + float(self.window.transfer_s[event, rank])
        self._at(max(self.over_s[event, rank], self.now_s), lambda: self._work(rank, event + 1))

    def _ready(self, event: int, bucket: int) -> None:
        lane = self.lanes[event]
        lane.missing[bucket] -= 1
        self._start_bucket(event)

    def _start_bucket(self, event: int) -> None:
        lane = self.lanes[event]
        if lane.busy or lane.next == len(lane.missing) or lane.missing[lane.next]:
            return
        lane.busy = True
        assert self.window.reductions is not None
        seconds = float(self.window.reductions.seconds[self.reduction_of[event], lane.next])
        self._at(self.now_s + seconds, lambda: self._end_bucket(event))

    def _end_bucket(self, event: int) -> None:
        lane = self.lanes[event]
        lane.busy = False
        lane.next += 1
        if lane.next == len(lane.missing):
            lane.ended_s = self.now_s
            for rank in lane.blocked:
                self._leave_lane(rank, event)
        else:
            self._start_bucket(event)

    def _leave_lane(self, rank: int, event: int) -> None:
        assert self.window.reductions is not None
        tail_s = float(self.window.reductions.tail_s[self.reduction_of[event], rank])
        self._at(self.now_s + tail_s, lambda: self._work(rank, event + 1))


def simulate(window: Window) -> Floats:
    """When each rank of ``window`` ends each step, in s after the first begin, shape (steps, ranks)."""
    return Simulation(window).run()
