"""Turn completed events of an accelerator into the times of steps, on the host's clock."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .clock import DeviceClock
from .step import Bucket, Moment, device_step

REBASE_NS = 4_000_000_000  # event times are 32-bit floats of ms: beyond 4 s they lose resolution
NS_PER_MS = 1_000_000

Where = Tuple[int, int]
"""Device and stream."""


class Mark(NamedTuple):
    """A phase change at ``asked_ns`` on the host: ``place`` is the innermost phase from here on.

    ``event`` is enqueued in the stream; None: the change is only on the host. Where no phase changed (``is_phase``), a
    bucket was ``ready``, or only the clock is looked at. ``seen_ns``: when the host observed the event complete, if it
    polled at once.
    """

    asked_ns: int
    place: int
    event: Any = None
    where: Optional[Where] = None
    is_phase: bool = True
    ready: Optional[Bucket] = None
    seen_ns: Optional[int] = None


class CallMarks(NamedTuple):
    """A collective that the program called: its kind, its number in its group, and places of marks in the step.

    The stream came to the call at ``called``, and was blocked from ``begin`` to ``end``.
    """

    kind: int
    number: int
    called: int
    begin: int
    end: int


def has_passed(marks: List[Mark]) -> bool:
    """Whether all ``marks`` are complete, of which the last has an event; one stream completes in order."""
    last = marks[-1]
    others = [mark for mark in marks if mark.event is not None and mark.where != last.where]
    return bool(last.event.query()) and all(mark.event.query() for mark in others)


class Resolver:
    """Gives the times of consecutive steps; events are timed relative to one that is kept for a while."""

    def __init__(self) -> None:
        self._clock = DeviceClock()
        self._base: Optional[Mark] = None
        self._base_ns = 0  # on the device's clock, whose origin is arbitrary
        self._before: Optional[Tuple[int, Mark, int]] = None  # the step before, its last mark, and when that completed

    def resolve(
        self, step: int, marks: List[Mark], seen_ns: int, calls: Sequence[CallMarks] = ()
    ) -> Tuple[Dict[str, Any], List[Mark]]:
        """The times of ``step`` by the names of ``schema.events.DeviceStep``, and marks whose events can be reused.

        Args:
            step: its number.
            marks: of one device and, but for buckets, of one stream; all observed complete at ``seen_ns``.
            seen_ns: on the host's clock.
            calls: collectives of the step.
        """
        last, kept = marks[-1], self._base
        if kept is None or kept.where is None or last.where is None or kept.where[0] != last.where[0]:
            self._clock, self._before = DeviceClock(), None
            self._base, self._base_ns = last, 0
        last_ns = self._base_ns + _elapsed_ns(self._base or last, last)
        passed = [(mark, last_ns - _elapsed_ns(mark, last)) for mark in marks[:-1] if mark.event is not None]
        passed.append((last, last_ns))
        self._learn(passed, seen_ns)
        times = self._times(step, marks, passed, calls)
        self._before = (step, last, last_ns)
        if last_ns - self._base_ns >= REBASE_NS:
            self._base, self._base_ns = last, last_ns
        return times, [mark for mark in (*marks, kept) if mark is not None and mark is not self._base]

    def _learn(self, passed: List[Tuple[Mark, int]], seen_ns: int) -> None:
        """Learn the clock from these marks and their positions on the device's clock, the tightest first."""
        tightest, at_ns = max(passed, key=_lead_ns)
        self._clock.learn(at_ns, tightest.asked_ns, seen_ns if tightest.seen_ns is None else tightest.seen_ns)
        for mark, position_ns in passed:
            if mark.seen_ns is not None and mark is not tightest:
                self._clock.learn(position_ns, mark.asked_ns, mark.seen_ns)

    def _times(
        self, step: int, marks: List[Mark], passed: List[Tuple[Mark, int]], calls: Sequence[CallMarks]
    ) -> Dict[str, Any]:
        last, last_ns = passed[-1]
        stream = last.where
        offset_ns = self._clock.offset_ns(last_ns)  # one for the whole step, so that durations within it are exact
        before, begin_ns = None, passed[0][1]
        if self._before is not None and self._before[0] == step - 1 and self._before[1].where == last.where:
            _, mark, begin_ns = self._before
            before = Moment(mark.asked_ns, mark.place, begin_ns + offset_ns)
        moments, positions = [], iter(passed)
        at_ns: List[Optional[int]] = []
        for asked_ns, place, event, where, _, ready, _ in marks:
            passed_ns = None if event is None else next(positions)[1] + offset_ns
            at_ns.append(passed_ns)
            on_stream = where is None or where == stream
            if on_stream or ready is not None:
                moments.append(Moment(asked_ns, place, passed_ns, ready, on_stream))
        times: Dict[str, Any] = device_step(moments, before=before)
        clock = self._clock
        times["bound_ns"] = max(clock.bound_ns(begin_ns, offset_ns), clock.bound_ns(last_ns, offset_ns))
        if calls:
            times["collectives"] = [_collective(call, at_ns) for call in calls]
        return times


def _collective(call: CallMarks, at_ns: List[Optional[int]]) -> List[int]:
    """One call as in ``schema.steps.Collective``, by when the stream passed each mark."""
    called, begin, end = [at_ns[place] or 0 for place in (call.called, call.begin, call.end)]
    end = max(end, begin)
    return [call.kind, call.number, min(called, begin), end - begin, end]


def _lead_ns(passed: Tuple[Mark, int]) -> int:
    """How far the host's clock was ahead when this was enqueued: largest where the device was idle."""
    mark, position_ns = passed
    return mark.asked_ns - position_ns


def _elapsed_ns(begin: Mark, end: Mark) -> int:
    elapsed_ms: float = begin.event.elapsed_time(end.event)
    return round(elapsed_ms * NS_PER_MS)
