"""Estimate the clock offsets between hosts from the ends of their collectives, with bounds from causality.

No rank leaves an all-reduce, an all-gather, a reduce-scatter or a barrier before the last rank has begun it. So for
each that hosts A and B share, with s the last begin and e the first end on a host, by its own clock::

    s_B − e_A  ≤  offset  ≤  e_B − s_A          offset = clock of B − clock of A

Within one recording the offset is modelled as a line in time, with a slope below ``MAX_DRIFT``. All lines that satisfy
every collective form a convex set; its least and largest values at a moment are the bounds there (Duda et al. 1987,
ICDCS; Becker, Rabenseifner & Wolf 2008). Ranks leave an all-reduce almost simultaneously, so the estimate is the median
of e_B − e_A, clipped to the bounds. The stated error is the distance to the farther bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.importers.kineto.calls import Call

MAX_DRIFT = 500e-6  # how fast ntp_adjtime(2) slews a clock; a free-running quartz is within 100 ppm
PAUSE_NS = 30_000_000_000  # between two collectives: recordings that far apart get separate lines
LEAST_FOR_SLOPE = 16  # collectives needed to fit a slope; with fewer, the offset is constant
SEARCHES = 80  # halvings of the range of slopes: far below the resolution of a float
BINS = 500  # parts of a recording; the tightest bound of each counts
ALL_TO_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""Operations that no rank leaves before all have begun; in an all-to-all, a rank may receive nothing from another."""

Floats = NDArray[np.float64]
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """At ``at_ns`` by a host's clock, that clock is ``offset_ns`` ahead of the reference's, to within ``bound_ns``."""

    at_ns: int
    offset_ns: int
    bound_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clocks of hosts relative to that of ``reference``; ``meetings`` counts the collectives that were used.

    ``looks`` is keyed by host; hosts with no path to the reference are in ``unknown``. ``contradictions``: hosts whose
    stamps no two steady clocks can have produced, with the amount in ns.
    """

    reference: str
    looks: Mapping[str, tuple[Look, ...]]
    meetings: int
    unknown: tuple[str, ...]
    contradictions: Mapping[str, int]


def estimate(calls: Mapping[int, Mapping[Key, Call]], host_of: Mapping[int, str]) -> Clocks:
    """The clocks of all hosts of ``host_of``.

    Args:
        calls: by rank, then by a key that all calls of one collective share.
        host_of: the host of each rank, whose clock stamped its calls.
    """
    hosts = list(dict.fromkeys(host_of.values()))
    by_host = _by_host(calls, host_of)
    misses = _contradictions(by_host)
    reference = max(hosts, key=lambda host: (len(by_host[host]), -hosts.index(host)))
    looks: dict[str, tuple[Look, ...]] = {reference: ()}
    contradictions = dict(misses)
    meetings = 0
    for known in (
        attached := [reference]
    ):  # grows: hosts that share collectives with the reference first, then those that share some with these
        for host in hosts:
            line = None if host in looks else _between(by_host[known], by_host[host])
            if line is None:
                continue
            extra_ns = misses.get(known, 0) + misses.get(host, 0)
            looks[host] = tuple(_relative_to_reference(line.looks, looks[known], extra_ns))
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
    """One host's clock relative to another's: looks by time, the number of collectives used, and the contradiction."""

    looks: tuple[Look, ...]
    meetings: int
    missed_ns: int


HostSpans = dict[Key, tuple[int, int]]
"""The last begin and the first end of each collective on a host's ranks, in ns of its clock."""


def _by_host(calls: Mapping[int, Mapping[Key, Call]], host_of: Mapping[int, str]) -> dict[str, HostSpans]:
    by_host: dict[str, HostSpans] = {host: {} for host in host_of.values()}
    for rank, its in calls.items():
        own = by_host[host_of[rank]]
        for key, call in its.items():
            if call.ran_ns is None or call.use.family not in ALL_TO_ALL:
                continue
            begin, end = call.ran_ns
            previous = own.get(key, (begin, end))
            own[key] = (max(begin, previous[0]), min(end, previous[1]))
    return by_host


def contradictions_within_hosts(calls: Mapping[int, Mapping[Key, Call]], host_of: Mapping[int, str]) -> dict[str, int]:
    """By how much ranks of one host contradict each other, in ns; hosts without contradictions are absent.

    Devices have their own clocks, which drivers convert more or less exactly, and several machines may share one name.
    Arguments as for ``estimate``.
    """
    return _contradictions(_by_host(calls, host_of))


def _contradictions(by_host: Mapping[str, HostSpans]) -> dict[str, int]:
    misses = {host: max((begin - end for begin, end in its.values()), default=0) for host, its in by_host.items()}
    return {host: miss for host, miss in misses.items() if miss > 0}


def _between(one: HostSpans, other: HostSpans) -> _Line | None:
    """The clock of ``other`` relative to that of ``one``; None: they share no collective."""
    shared = sorted((other[key], one[key]) for key in one.keys() & other.keys())
    if not shared:
        return None
    stamps = np.array([(*other_stamps, *one_stamps) for other_stamps, one_stamps in shared], dtype=np.int64)
    parts = np.split(stamps, np.flatnonzero(np.diff(stamps[:, 0]) > PAUSE_NS) + 1)
    looks: list[Look] = []
    missed_ns = 0
    for part in parts:
        part_looks, part_missed_ns = _window(part)
        looks += part_looks
        missed_ns = max(missed_ns, part_missed_ns)
    return _Line(looks=tuple(looks), meetings=len(shared), missed_ns=missed_ns)


def _window(stamps: NDArray[np.int64]) -> tuple[list[Look], int]:
    """The offset at both ends of one recording, from rows of (their begin, their end, our begin, our end)."""
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
        guess = min(max(_fitted(high_at, ends, at), least), most)
        bound = max(most - guess, guess - least)
        looks.append(Look(at_ns=base_ns + round(at), offset_ns=zero_ns + round(guess), bound_ns=int(bound) + 1))
    return looks, int(lines.missed_ns)


def _tightest(at: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The smallest value of each of ``BINS`` equal parts of the time, with its moment: other points do not matter."""
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    place = np.minimum(((at - at[0]) * (BINS / max(float(at[-1] - at[0]), 1.0))).astype(np.int64), BINS - 1)
    by_value = np.lexsort((values, place))
    kept = by_value[np.append(True, np.diff(place[by_value]) > 0)]
    return at[kept], values[kept]


def _fitted(at: Floats, values: Floats, when: float) -> float:
    """A line through the medians of the first and the second half, at ``when``; with few points, their median."""
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
    feasible slopes form an interval, and each bound is found by bisection. Where no slope is feasible, the line with
    the smallest violation is used, and ``missed_ns`` is that violation: no two steady clocks produced these stamps.
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
    """Where a concave function is largest between two numbers, by ternary search."""
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


def _relative_to_reference(looks: Iterable[Look], known: Sequence[Look], extra_ns: int) -> Iterator[Look]:
    """Looks relative to a host that ``known`` describes (empty: the reference), widened by ``extra_ns``."""
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
