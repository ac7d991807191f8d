"""Operators of a profiler trace by self time: what torch's own ``key_averages`` shows, from the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.traces.json_stream import Text, members
from allpull.traces.kineto import plain
from allpull.traces.unpacked import Unpacked

MAX_EVENTS = 500_000  # of one window; a window with more is read up to there
MAX_US = 1e18
KINDS = {"cpu_op": "operator", "kernel": "kernel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call of an operator, or one kernel; times in µs, as in the trace."""

    kind: str
    name: str
    thread: str
    begin: float
    length: float


def self_times(root: Path, relative: str, limit_bytes: int) -> dict[tuple[str, str], tuple[int, float]]:
    """(kind, name) → calls and seconds of self time in the trace ``relative`` of the resolved run directory ``root``.

    The self time of an operator is its time without the operators that it calls on its thread. What follows damage, or
    ``limit_bytes`` of the unpacked file, is not read; a file that cannot be opened has nothing.
    """
    try:
        with safe_open.opened(root, relative) as (file, size_bytes):
            unpacked = Unpacked(file, size_bytes, is_packed=relative.endswith(".gz"), limit_bytes=limit_bytes)
            return summed(_events(unpacked))
    except RunDirError:
        return {}


def summed(events: Iterable[Event]) -> dict[tuple[str, str], tuple[int, float]]:
    """Calls and self time of each name of ``events``.

    >>> outer = Event(kind="operator", name="conv", thread="1", begin=0, length=9)
    >>> inner = Event(kind="operator", name="mm", thread="1", begin=2, length=5)
    >>> calls, seconds = summed([inner, outer])[("operator", "conv")]
    >>> calls, round(seconds * 1e6)
    (1, 4)
    """
    calls: dict[tuple[str, str], tuple[int, float]] = {}
    open_: list[Event] = []

    def add(event: Event, number: int, microseconds: float) -> None:
        before, seconds = calls.get((event.kind, event.name), (0, 0.0))
        calls[event.kind, event.name] = (before + number, seconds + microseconds * 1e-6)

    for event in sorted(events, key=lambda one: (one.kind, one.thread, one.begin, -one.length)):
        while open_ and not _contains(open_[-1], event):
            open_.pop()
        if open_:
            add(open_[-1], 0, -event.length)
        add(event, 1, event.length)
        if event.kind == "operator":
            open_.append(event)
    return calls


def _contains(outer: Event, event: Event) -> bool:
    same = (outer.kind, outer.thread) == (event.kind, event.thread)
    return same and event.begin + event.length <= outer.begin + outer.length


def _events(unpacked: Unpacked) -> Iterator[Event]:
    number = 0
    try:
        for name, value in members(Text(unpacked.read), ("traceEvents",)):
            event = _event(value) if name in ("traceEvents", "") else None
            if event is not None:
                number += 1
                yield event
            if number >= MAX_EVENTS:
                return
    except ValueError:  # damaged or cut off: what precedes it counts
        return


def _event(value: Any) -> Event | None:
    if not isinstance(value, dict) or value.get("ph") != "X" or not isinstance(value.get("cat"), str):
        return None
    kind, name = KINDS.get(value["cat"]), value.get("name")
    begin, length = _number(value.get("ts")), _number(value.get("dur"))
    if kind is None or not isinstance(name, str) or begin is None or length is None or length < 0:
        return None
    return Event(kind=kind, name=plain(name), thread=str(value.get("tid"))[:40], begin=begin, length=length)


def _number(value: Any) -> float | None:
    return float(value) if type(value) in {int, float} and abs(value) < MAX_US else None
