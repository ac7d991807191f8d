"""Operators and kernels of a profiler trace by self time, as in torch's ``key_averages``, and by class of work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.schema.operators import WorkClass
from allpull.traces import classify
from allpull.traces.json_stream import Text, members
from allpull.traces.kineto import plain
from allpull.traces.unpacked import Unpacked
from allpull.traces.work_class import PARTS, of_kernel, of_operator

MAX_EVENTS = 500_000  # of one window; a window with more is read up to there
MAX_US = 1e18

Kind = Literal["operator", "kernel", "copy", "part", "launch"]
KINDS: Mapping[classify.Lane, Kind] = {
    "op": "operator",
    "kernel": "kernel",
    "copy": "copy",
    "note": "part",
    "launch": "launch",
}
ON_HOST = ("operator", "part", "launch")
"""Kinds of events that nest on a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call of an operator, one kernel or copy of the device, an annotated part of a step, or a launch.

    Times are in µs, as in the trace. ``correlation`` connects a kernel or copy with its launch; None: unknown.
    """

    kind: Kind
    name: str
    thread: str
    begin: float
    length: float
    correlation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one name and class: ``kind`` is operator, kernel, or copy of the device."""

    kind: Kind
    name: str
    work: WorkClass


Sums = dict[Work, tuple[int, float]]
"""Work → calls and seconds of self time."""


def self_times(root: Path, relative: str, limit_bytes: int) -> dict[tuple[str, str], tuple[int, float]]:
    """(kind, name) → calls and seconds of self time in the trace ``relative`` of the resolved run directory ``root``.

    The self time of an operator is its time without the operators that it calls on its thread. What follows damage, or
    ``limit_bytes`` of the unpacked file, is not read; a file that cannot be opened has nothing.
    """
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for work, (calls, seconds) in work_times(root, relative, limit_bytes).items():
        if work.kind != "copy":
            before, so_far_s = sums.get((work.kind, work.name), (0, 0.0))
            sums[work.kind, work.name] = (before + calls, so_far_s + seconds)
    return sums


def work_times(root: Path, relative: str, limit_bytes: int) -> Sums:
    """As ``self_times``, by class of work too, and with the copies of the device."""
    try:
        with safe_open.opened(root, relative) as (file, size_bytes):
            unpacked = Unpacked(file, size_bytes, is_packed=relative.endswith(".gz"), limit_bytes=limit_bytes)
            return summed(_events(unpacked))
    except RunDirError:
        return {}


def summed(events: Iterable[Event]) -> Sums:
    """Calls and self time of each name and class of ``events``.

    >>> outer = Event(kind="operator", name="conv2d", thread="1", begin=0, length=9)
    >>> inner = Event(kind="operator", name="mm", thread="1", begin=2, length=5)
    >>> [(work.name, work.work, round(seconds * 1e6)) for work, (_, seconds) in summed([inner, outer]).items()]
    [('conv2d', 'convolution', 4), ('mm', 'convolution', 5)]
    """
    every = list(events)
    sums, launchers = _on_host(every)
    for event in every:
        if event.kind not in ON_HOST:
            launcher = None if event.correlation is None else launchers.get(event.correlation)
            _add(sums, Work(kind=event.kind, name=event.name, work=of_kernel(event.name, launcher)), 1, event.length)
    return sums


def _on_host(events: Iterable[Event]) -> tuple[Sums, dict[int, WorkClass]]:
    """The operators of ``events``, and the class of the operator around each launch."""
    sums: Sums = {}
    launchers: dict[int, WorkClass] = {}
    open_: list[tuple[Event, WorkClass]] = []
    known: dict[tuple[str, tuple[WorkClass, ...]], WorkClass] = {}
    hosts = (event for event in events if event.kind in ON_HOST)
    for event in sorted(hosts, key=lambda one: (one.thread, one.begin, -one.length, one.kind != "part")):
        while open_ and not _contains(open_[-1][0], event):
            open_.pop()
        if event.kind == "launch":
            if open_ and event.correlation is not None:
                launchers[event.correlation] = open_[-1][1]
            continue
        if event.kind == "part":
            marked = classify.mark(event.name)
            part = None if marked is None else PARTS.get(marked[0])
            if part is not None:
                open_.append((event, part))
            continue
        around = tuple(work for _, work in open_)
        work = known.get((event.name, around))
        if work is None:
            work = known[event.name, around] = of_operator(event.name, around)
        caller = next((one for one in reversed(open_) if one[0].kind == "operator"), None)
        if caller is not None:
            _add(sums, Work(kind="operator", name=caller[0].name, work=caller[1]), 0, -event.length)
        _add(sums, Work(kind="operator", name=event.name, work=work), 1, event.length)
        open_.append((event, work))
    return sums, launchers


def _add(sums: Sums, work: Work, number: int, microseconds: float) -> None:
    before, seconds = sums.get(work, (0, 0.0))
    sums[work] = (before + number, seconds + microseconds * 1e-6)


def _contains(outer: Event, event: Event) -> bool:
    return outer.thread == event.thread and event.begin + event.length <= outer.begin + outer.length


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
    lane, name = classify.LANES.get(value["cat"]), value.get("name")
    begin, length = _number(value.get("ts")), _number(value.get("dur"))
    if lane is None or not isinstance(name, str) or begin is None or length is None or length < 0:
        return None
    arguments = value.get("args")
    number = arguments.get("correlation") if isinstance(arguments, dict) else None
    return Event(
        kind=KINDS[lane],
        name=plain(name),
        thread=str(value.get("tid"))[:40],
        begin=begin,
        length=length,
        correlation=number if type(number) is int else None,
    )


def _number(value: Any) -> float | None:
    return float(value) if type(value) in {int, float} and abs(value) < MAX_US else None
