"""Put the times of all hosts on one clock, by the pings that were recorded while their job ran.

A ping shows that the offset of its host was within θ ± ρ/2 (``intervals``), however long each of its two ways took.
Only the fastest ping of each burst is used. Between bursts the offset is interpolated linearly, and beyond them it is
extrapolated at the last rate, as in Score-P and Scalasca. The bound on its error is interpolated in the same way, plus
how far the clock may have left the line:

- between two bursts its rate may have wandered by ``WANDER`` and, where the rates before and after differ by more than
  their pings explain, by that difference; times the distance to the nearer burst;
- before the first and after the last its rate is known only as well as two bursts show it, and assumed to be below
  ``MAX_DRIFT`` unless they show otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from allpull.rundir.read.counters import PING_MOMENTS
from allpull.units import NS_PER_S

Times = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_DRIFT = 500e-6  # how fast ntp_adjtime(2) slews a clock; an undisciplined quartz is within 100 ppm
WANDER = 1e-6  # by which the rate of a quartz may change within a minute, as its machine warms up
BURST_NS = NS_PER_S  # pings within it are of one burst: the longest that a sidecar lets one take
BASELINE_NS = 10 * NS_PER_S  # over less, a rate would be the quotient of two small errors
MAX_APART_NS = float(2**61)  # beyond it differences of differences leave 64 bits: no two real clocks are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostClock:
    """One host's clock minus the reference's.

    ``at_ns`` are the bursts on the host's own clock, ascending; ``offset_ns`` int64 and ``half_ns`` the offset there
    and how wrong it may be. ``wander`` is that of the rate between each two of them. ``rates`` and ``rate_bounds`` go
    before the first and after the last.
    """

    at_ns: Times
    offset_ns: Times
    half_ns: Floats
    wander: Floats
    rates: tuple[float, float]
    rate_bounds: tuple[float, float]

    def offsets_ns(self, t_ns: Times) -> Times:
        """The offset at each time ``t_ns`` of the host's clock, in ns."""
        left, right, share, outside_ns = self._between(t_ns)
        step = (self.offset_ns[right] - self.offset_ns[left]).astype(np.float64) * share
        beyond = np.where(outside_ns < 0, self.rates[0], self.rates[1]) * outside_ns
        return self.offset_ns[left] + np.rint(step + beyond).astype(np.int64)

    def bounds_ns(self, t_ns: Times) -> Floats:
        """How wrong the offset may be at each time ``t_ns`` of the host's clock, in ns."""
        left, right, share, outside_ns = self._between(t_ns)
        at_bursts = (1 - share) * self.half_ns[left] + share * self.half_ns[right]
        length_ns = (self.at_ns[right] - self.at_ns[left]).astype(np.float64)
        wander = self.wander[np.minimum(left, self.wander.size - 1)] if self.wander.size else 0.0
        inside = wander * np.minimum(share, 1 - share) * length_ns
        beyond = np.where(outside_ns < 0, self.rate_bounds[0], self.rate_bounds[1]) * np.abs(outside_ns)
        bounds: Floats = at_bursts + inside + beyond
        return bounds

    def _between(self, t_ns: Times) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
        """The bursts around each time, how far it is from the left to the right one, and how far outside all."""
        last = self.at_ns.size - 1
        inside = np.clip(t_ns, self.at_ns[0], self.at_ns[-1])
        left = np.clip(np.searchsorted(self.at_ns, inside, side="right") - 1, 0, last)
        right = np.minimum(left + 1, last)
        length_ns = np.maximum(self.at_ns[right] - self.at_ns[left], 1)
        share = (inside - self.at_ns[left]).astype(np.float64) / length_ns
        return left, right, share, (t_ns - inside).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment:
    """The clocks of hosts against that of ``reference``; hosts that could not be compared with it are not in it.

    ``unpinged`` are those hosts of the job that could not be aligned.
    """

    reference: str | None
    clocks: Mapping[str, HostClock]
    unpinged: tuple[str, ...]

    def __contains__(self, host: str) -> bool:
        return host == self.reference or host in self.clocks

    def offset_ns(self, host: str, t_ns: ArrayLike) -> Times:
        """The clock of ``host`` minus the reference's, at times ``t_ns`` of the host's own; int64, same shape.

        Raises:
            KeyError: ``host`` is not aligned.
        """
        times = np.asarray(t_ns, dtype=np.int64)
        return np.zeros_like(times) if host == self.reference else self.clocks[host].offsets_ns(times)

    def aligned_ns(self, host: str, t_ns: ArrayLike) -> Times:
        """Times of the clock of ``host`` as the reference's clock would show them; int64, same shape.

        Raises:
            KeyError: ``host`` is not aligned.
        """
        return np.asarray(t_ns, dtype=np.int64) - self.offset_ns(host, t_ns)

    def bound_s(self, host: str, t_ns: ArrayLike) -> Floats:
        """How wrong ``offset_ns`` may be at each time, in seconds; same shape.

        Raises:
            KeyError: ``host`` is not aligned.
        """
        times = np.asarray(t_ns, dtype=np.int64)
        if host == self.reference:
            return np.zeros(times.shape)
        return self.clocks[host].bounds_ns(times) / NS_PER_S


def align(
    pings: pl.DataFrame, hosts: Sequence[str], *, clock: Literal["monotonic", "realtime"] = "monotonic"
) -> Alignment:
    """The clocks of ``hosts`` on that of the host which the others pinged.

    Args:
        pings: columns of ``rundir.read.counters.PINGS_SCHEMA``, in any order; impossible pings are left out.
        hosts: all hosts of the job. A single one is its own reference.
        clock: which of each host's clocks is meant.
    """
    targets = Counter(pings["against"].to_list())
    reference = max(targets, key=lambda host: (targets[host], host)) if targets else None
    if reference is None and len(set(hosts)) == 1:
        reference = hosts[0]
    suffix = "_real_ns" if clock == "realtime" else "_ns"
    to_reference = pings.filter((pl.col("against") == (reference or "")) & (pl.col("host") != (reference or "")))
    clocks = {}
    for (host,), rows in to_reference.group_by("host", maintain_order=True):
        host_clock = _host_clock(rows.select(f"{moment}{suffix}" for moment in PING_MOMENTS).drop_nulls().to_numpy())
        if host_clock is not None:
            clocks[str(host)] = host_clock
    unpinged = tuple(host for host in dict.fromkeys(hosts) if host != reference and host not in clocks)
    return Alignment(reference=reference, clocks=clocks, unpinged=unpinged)


def intervals(stamps: Times) -> tuple[Times, Times]:
    """2θ and ρ of each ping, in ns; ``stamps`` has shape (pings, 4): sent, received, answered, back.

    A ping was sent at s and back at b on our clock, received at r and answered at a on theirs. However long its two
    ways took, their clock minus ours was within θ ± ρ/2 with θ = ((r − s) + (a − b))/2 and ρ = (b − s) − (a − r), the
    round trip (RFC 5905 §8). Whole nanoseconds, because clocks that count from 1970 exceed a float's digits.
    """
    sent, received, answered, back = stamps.T
    return (received - sent) + (answered - back), (back - sent) - (answered - received)


def _host_clock(stamps: Times) -> HostClock | None:
    """The clock of one host from its pings, shape (pings, 4); None where none of them is possible."""
    sane = stamps[(np.abs(stamps - stamps[:, :1].astype(np.float64)) < MAX_APART_NS).all(axis=1)]
    twice_theta, round_trip_ns = intervals(sane)
    possible = (round_trip_ns >= 0) & (sane[:, 3] >= sane[:, 0])  # else a clock was set in between
    order = np.flatnonzero(possible)[np.argsort(sane[possible, 0], kind="stable")]
    if not order.size:
        return None
    sent, away_ns = sane[order, 0], (sane[order, 3] - sane[order, 0])
    half_ns = round_trip_ns[order] / 2 + MAX_DRIFT * away_ns + 1  # it drifts while a ping is under way; and rounding
    best = _fastest_of_bursts(sent, half_ns)
    return through(
        at_ns=sent[best] + away_ns[best] // 2,
        offset_ns=-(twice_theta[order[best]] // 2),  # who pings is ahead by what the other is behind
        half_ns=half_ns[best],
    )


def _fastest_of_bursts(sent_ns: Times, half_ns: Floats) -> Times:
    """The index of the fastest ping of each burst; ``sent_ns`` is ascending."""
    sent, half = sent_ns.tolist(), half_ns.tolist()
    best, first = [], 0
    while first < len(sent):
        end = bisect_left(sent, sent[first] + BURST_NS, lo=first)
        best.append(min(range(first, end), key=half.__getitem__))
        first = end
    return np.array(best, dtype=np.int64)


def through(*, at_ns: Times, offset_ns: Times, half_ns: Floats) -> HostClock:
    """The line through all bursts, with its rates before the first and after the last.

    At ``at_ns`` of its own clock, ascending, the host was ahead by ``offset_ns``, up to ``half_ns``; one at least.
    """
    at_ns, kept = np.unique(at_ns, return_index=True)
    offset_ns, half_ns = offset_ns[kept], half_ns[kept]
    length_ns = np.diff(at_ns).astype(np.float64)
    rate = np.diff(offset_ns) / length_ns
    slack = (half_ns[1:] + half_ns[:-1]) / length_ns
    change, explained = np.abs(np.diff(rate)), slack[1:] + slack[:-1]
    unexplained = np.where(change > explained, change + explained, 0)  # it may be as much larger as it may be smaller
    wander = np.full(rate.size, WANDER)
    if rate.size > 1:
        wander += np.maximum(np.append(unexplained, 0), np.insert(unexplained, 0, 0))
    last = at_ns.size - 1
    far_from_first = min(last, int(np.searchsorted(at_ns, at_ns[0] + BASELINE_NS)))
    far_from_last = max(0, int(np.searchsorted(at_ns, at_ns[-1] - BASELINE_NS, side="right")) - 1)
    ends = []
    for near, far, edge in ((0, far_from_first, wander[:1]), (last, far_from_last, wander[-1:])):
        rate_there, bound = _rate(at_ns[[near, far]], offset_ns[[near, far]], float(half_ns[near] + half_ns[far]))
        ends.append((rate_there, bound + float(edge.sum())))
    return HostClock(
        at_ns=at_ns,
        offset_ns=offset_ns,
        half_ns=half_ns,
        wander=wander,
        rates=(ends[0][0], ends[1][0]),
        rate_bounds=(ends[0][1], ends[1][1]),
    )


def _rate(at_ns: Times, offset_ns: Times, slack_ns: float) -> tuple[float, float]:
    """The rate between two bursts and how wrong it may be; no clock in use exceeds ``MAX_DRIFT``."""
    length_ns = float(at_ns[1] - at_ns[0])
    if length_ns == 0:
        return 0.0, MAX_DRIFT
    rate, slack = float(offset_ns[1] - offset_ns[0]) / length_ns, slack_ns / abs(length_ns)
    low, high = max(rate - slack, -MAX_DRIFT), min(rate + slack, MAX_DRIFT)
    if low > high:
        return rate, slack
    return (low + high) / 2, (high - low) / 2
