"""Events of Chrome's trace format, one line each, which Perfetto opens (Google, "Trace Event Format").

Complete events ``X`` nest or follow each other on their track: overlapping ones are not allowed, so ``lanes`` spreads
them. Counters are ``C``, instants ``i``, names ``M``. A rank is a process; times are in µs after ``base_ns``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

TRACKS_PER_RANK = 1000


@dataclass(frozen=True, slots=True)
class Sheet:
    """Writes events with moments in ns of one clock; none may be before ``base_ns``."""

    base_ns: int

    def process(self, rank: int, title: str) -> Iterator[str]:
        """Name the process of ``rank``, and set its position."""
        yield self._named(rank, 0, "process_name", name=title)
        yield self._named(rank, 0, "process_sort_index", sort_index=rank)

    def track(self, rank: int, track: int, title: str) -> Iterator[str]:
        """Name a track of ``rank``; tracks are sorted by number."""
        yield self._named(rank, track, "thread_name", name=title)
        yield self._named(rank, track, "thread_sort_index", sort_index=track)

    def slice(self, rank: int, track: int, name: str, times_ns: tuple[int, int], about: dict[str, Any]) -> str:
        """An interval between the two moments of ``times_ns``."""
        begin_ns, end_ns = times_ns
        timed = f'"ts":{self._us(begin_ns)},"dur":{_us(end_ns - begin_ns)}'
        return f'{{"ph":"X",{_place(rank, track)},{timed},"name":{json.dumps(name)},"args":{json.dumps(about)}}}'

    def instant(self, rank: int, track: int, name: str, t_ns: int) -> str:
        """A moment on one track."""
        return f'{{"ph":"i","s":"t",{_place(rank, track)},"ts":{self._us(t_ns)},"name":{json.dumps(name)}}}'

    def count(self, rank: int, name: str, t_ns: int, value: float) -> str:
        """The value of a counter from ``t_ns`` on."""
        shown = f'"name":{json.dumps(name)},"args":{{"value":{value:.6g}}}'
        return f'{{"ph":"C","pid":{rank + 1},"ts":{self._us(t_ns)},{shown}}}'

    def _named(self, rank: int, track: int, field: str, **value: str | int) -> str:
        return f'{{"ph":"M",{_place(rank, track)},"name":"{field}","args":{json.dumps(value)}}}'

    def _us(self, t_ns: int) -> str:
        return _us(t_ns - self.base_ns)


def lanes(times_ns: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The lane of each interval such that those in one lane do not overlap; intervals are sorted by their begin.

    >>> list(lanes([(0, 10), (2, 5), (5, 12), (10, 11)]))
    [0, 1, 1, 0]
    """
    taken: list[tuple[int, int]] = []  # end of the last interval, lane
    free: list[int] = []
    count = 0
    for begin_ns, end_ns in times_ns:
        while taken and taken[0][0] <= begin_ns:
            heappush(free, heappop(taken)[1])
        if not free:
            free, count = [count], count + 1
        lane = heappop(free)
        heappush(taken, (end_ns, lane))
        yield lane


def _place(rank: int, track: int) -> str:
    """Readers take process 0 for the idle one, and identify a thread by its number alone."""
    return f'"pid":{rank + 1},"tid":{(rank + 1) * TRACKS_PER_RANK + track}'


def _us(ns: int) -> str:
    """Nanoseconds as µs, to the last digit: rounding must not make two adjacent events overlap."""
    return f"{ns // 1000}.{ns % 1000:03d}"
