"""Estimate how far the clocks of hosts are apart from the ends of their collectives, with bounds that causality gives.

Nobody leaves an all-reduce, an all-gather, a reduce-scatter or a barrier before the last rank has begun it. So of each
that hosts A and B made together, with s the last begin and e the first end on a host, by its own clock::

    s_B − e_A  ≤  offset  ≤  e_B − s_A          offset = clock of B − clock of A

The offset is taken to be a line in time, of a slope below ``MAX_DRIFT``, within one recording: all lines that satisfy
every collective make up a convex set, and its least and largest values at a moment are the bounds there (Duda et al.
1987, ICDCS; Becker, Rabenseifner & Wolf 2008). Ranks leave an all-reduce nearly together, so the estimate is the median
of e_B − e_A, moved into the bounds where it is outside. The error that is stated is the distance to the farther bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.importers.kineto.calls import Call

MAX_DRIFT = 500e-6  # how fast ntp_adjtime(2) slews a clock; a quartz left alone is within 100 ppm
PAUSE_NS = 30_000_000_000  # between two collectives: recordings that far apart have lines of their own
LEAST_FOR_SLOPE = 16  # collectives from whose ends a slope is told; fewer are one offset
SEARCHES = 80  # halvings of the range of slopes: far below what a float can tell apart
BINS = 500  # parts of a recording, of each of which the tightest bound counts
ALL_TO_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""Operations that nobody leaves before all have come; an all-to-all may send nothing to somebody."""

Floats = NDArray[np.float64]
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """At ``at_ns`` of a host's clock it was ``offset_ns`` ahead of the reference's, up to ``bound_ns``."""

    at_ns: int
    offset_ns: int
    bound_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clocks of hosts against that of ``reference``, and from how many collectives that is known.

    ``looks`` goes by host; hosts without a way to the reference are in ``unknown``. ``contradictions``: hosts whose
    collectives no two steady clocks can have stamped, with by how much they miss, in ns.
    """

    reference: str
    looks: Mapping[str, tuple[Look, ...]]
    meetings: int
    unknown: tuple[str, ...]
    contradictions: Mapping[str, int]


def estimate(calls: Mapping[int, Mapping[Key, Call]], host_of: Mapping[int, str]) -> Clocks:
    """The clocks of all hosts of ``host_of``.

    Args:
        calls: by rank, then by a key that calls have in common which belong together.
        host_of: the host of each rank, whose clock stamped its calls.
    """
    hosts = list(dict.fromkeys(host_of.values()))
    met = _by_host(calls, host_of)
    misses = _apart(met)
    reference = max(hosts, key=lambda host: (len(met[host]), -hosts.index(host)))
    looks: dict[str, tuple[Look, ...]] = {reference: ()}
    contradictions = dict(misses)
    meetings = 0
    for known in (attached := [reference]):  # it grows: hosts that met the reference first, then those that met these
        for host in hosts:
            line = None if host in looks else _between(met[known], met[host])
            if line is None:
                continue
            extra_ns = misses.get(known, 0) + misses.get(host, 0)
            looks[host] = tuple(_on(line.looks, looks[known], extra_ns))
            attached.append(host)
            meetings += line.meetings
            if line.missed_ns:
                contradictions[host] = max(line.missed_ns, contradictions.get(host, 0))
    return Clocks(
        reference=reference,
        looks={host: its for host, its in looks.items() if host != reference},
        meetings=meetings,
        unknown=tuple(host for host in hosts if host not in looks),
        contradictions=contradictions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One host's clock against another's: looks by time, how many collectives tell it, and what contradicts."""

    looks: tuple[Look, ...]
    meetings: int
    missed_ns: int


Met = dict[Key, tuple[int, int]]
"""Of each collective the last begin and the first end of a host's ranks, in ns of its clock."""


def _by_host(calls: Mapping[int, Mapping[Key, Call]], host_of: Mapping[int, str]) -> dict[str, Met]:
    found: dict[str, Met] = {host: {} for host in host_of.values()}
    for rank, its in calls.items():
        met = found[host_of[rank]]
        for key, call in its.items():
            if call.ran_ns is None or call.use.family not in ALL_TO_ALL:
                continue
            begin, end = call.ran_ns
            known = met.get(key, (begin, end))
            met[key] = (max(begin, known[0]), min(end, known[1]))
    return found


def apart(calls: Mapping[int, Mapping[Key, Call]], host_of: Mapping[int, str]) -> dict[str, int]:
    """By how much ranks of one host contradict each other, in ns; hosts that do not are absent.

    Devices have clocks of their own, which drivers convert, some better than others; and several machines may go under
    one name. Arguments as of ``estimate``.
    """
    return _apart(_by_host(calls, host_of))


def _apart(met: Mapping[str, Met]) -> dict[str, int]:
    misses = {host: max((begin - end for begin, end in its.values()), default=0) for host, its in met.items()}
    return {host: miss for host, miss in misses.items() if miss > 0}


def _between(one: Met, other: Met) -> _Line | None:
    """The clock of ``other`` against that of ``one``; None: they did nothing together."""
    shared = sorted((other[key], one[key]) for key in one.keys() & other.keys())
    if not shared:
        return None
    stamps = np.array([(*theirs, *ours) for theirs, ours in shared], dtype=np.int64)
    parts = np.split(stamps, np.flatnonzero(np.diff(stamps[:, 0]) > PAUSE_NS) + 1)
    looks: list[Look] = []
    missed_ns = 0
    for part in parts:
        found, missed = _window(part)
        looks += found
        missed_ns = max(missed_ns, missed)
    return _Line(looks=tuple(looks), meetings=len(shared), missed_ns=missed_ns)


def _window(stamps: NDArray[np.int64]) -> tuple[list[Look], int]:
    """The offset at both ends of one recording, from rows of their begin and end, our begin and end."""
    their_begin, their_end, our_begin, our_end = stamps.T
    base_ns, zero_ns = int(their_begin[0]), int(their_end[0] - our_end[0])  # floats hold differences, not clocks
    high = (their_end - our_begin - zero_ns).astype(np.float64)
    low = (their_begin - our_end - zero_ns).astype(np.float64)
    high_at, low_at = ((at - base_ns).astype(np.float64) for at in (their_end, their_begin))
    lines = _Lines(*_tightest(high_at, high), *_tightest(low_at, -low))
    ends = (their_end - our_end - zero_ns).astype(np.float64)
    looks = []
    for at in sorted({0.0, float(high_at.max())}):
        least, most = lines.at(at)
        guess = min(max(_usual(high_at, ends, at), least), most)
        bound = max(most - guess, guess - least)
        looks.append(Look(at_ns=base_ns + round(at), offset_ns=zero_ns + round(guess), bound_ns=int(bound) + 1))
    return looks, int(lines.missed_ns)


def _tightest(at: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The smallest value of each of ``BINS`` equal parts of the time, with its moment: the others bind no line."""
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    place = np.minimum(((at - at[0]) * (BINS / max(float(at[-1] - at[0]), 1.0))).astype(np.int64), BINS - 1)
    by_value = np.lexsort((values, place))
    kept = by_value[np.append(True, np.diff(place[by_value]) > 0)]
    return at[kept], values[kept]


def _usual(at: Floats, values: Floats, when: float) -> float:
    """A line through the medians of the first and the second half, at ``when``; their median where they are few."""
    if at.size < LEAST_FOR_SLOPE:
        return float(np.median(values))
    half = at.size // 2
    early, late = float(np.median(at[:half])), float(np.median(at[half:]))
    first, second = float(np.median(values[:half])), float(np.median(values[half:]))
    slope = (second - first) / (late - early) if late > early else 0.0
    return first + min(max(slope, -MAX_DRIFT), MAX_DRIFT) * (when - early)


class _Lines:
    """All lines below the points ``high`` and above the points ``low``, of slopes up to ``MAX_DRIFT``.

    At one slope, the highest line touches the lowest of ``high − slope · at``: a concave function of the slope. So the
    slopes that leave room are an interval, and each bound is found by halving it. Where no slope leaves room, the line
    that is least wrong is taken, and ``missed_ns`` is by how much: no two steady clocks stamped these.
    """

    def __init__(self, high_at: Floats, high: Floats, low_at: Floats, minus_low: Floats) -> None:
        self._high_at, self._high, self._low_at, self._low = high_at, high, low_at, -minus_low
        best = _highest(lambda slope: self._room(slope, 0.0), -MAX_DRIFT, MAX_DRIFT)
        room = self._room(best, 0.0)
        self.missed_ns = max(0.0, -room / 2)
        self._slopes = (best, best)
        if room > 0:
            self._slopes = (
                _edge(lambda slope: self._room(slope, 0.0), best, -MAX_DRIFT),
                _edge(lambda slope: self._room(slope, 0.0), best, MAX_DRIFT),
            )

    def at(self, when: float) -> tuple[float, float]:
        """The least and the largest value of any of the lines at ``when``."""
        left, right = self._slopes
        most_at = _highest(lambda slope: self._most(slope, when), left, right)
        least_at = _highest(lambda slope: -self._least(slope, when), left, right)
        least, most = self._least(least_at, when), self._most(most_at, when)
        if least <= most and not self.missed_ns:
            return least, most
        middle = (least + most) / 2
        return middle - 2 * self.missed_ns, middle + 2 * self.missed_ns

    def _most(self, slope: float, when: float) -> float:
        return float((self._high - slope * (self._high_at - when)).min())

    def _least(self, slope: float, when: float) -> float:
        return float((self._low - slope * (self._low_at - when)).max())

    def _room(self, slope: float, when: float) -> float:
        return self._most(slope, when) - self._least(slope, when)


def _highest(value: Callable[[float], float], left: float, right: float) -> float:
    """Where a concave function is largest between two numbers, by thirds."""
    for _ in range(SEARCHES):
        a, b = left + (right - left) / 3, right - (right - left) / 3
        if value(a) < value(b):
            left = a
        else:
            right = b
    return (left + right) / 2


def _edge(value: Callable[[float], float], inside: float, outside: float) -> float:
    """How far towards ``outside`` a function that is positive at ``inside`` stays so."""
    if value(outside) >= 0:
        return outside
    for _ in range(SEARCHES):
        middle = (inside + outside) / 2
        if value(middle) >= 0:
            inside = middle
        else:
            outside = middle
    return inside


def _on(looks: Iterable[Look], known: Sequence[Look], extra_ns: int) -> Iterator[Look]:
    """Looks against a host that is itself known by ``known`` (the reference needs none), wider by ``extra_ns``."""
    for look in looks:
        offset_ns, bound_ns = look.offset_ns, look.bound_ns + extra_ns
        if known:
            zero = known[0]
            at = np.array([one.at_ns - zero.at_ns for one in known], dtype=np.float64)
            when = float(look.at_ns - look.offset_ns - zero.at_ns)
            offsets = np.array([one.offset_ns - zero.offset_ns for one in known], dtype=np.float64)
            bounds = np.array([one.bound_ns for one in known], dtype=np.float64)
            offset_ns += zero.offset_ns + round(float(np.interp(when, at, offsets)))
            bound_ns += int(np.interp(when, at, bounds)) + 1
        yield Look(at_ns=look.at_ns, offset_ns=offset_ns, bound_ns=bound_ns)
