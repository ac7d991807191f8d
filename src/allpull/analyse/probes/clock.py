"""Offset and drift between the clocks of two hosts, from the pings of the clock probe, with bounds on their error.

The fastest ping of each burst bounds the offset (``analyse.clock.host_clocks.intervals``). The true offset is assumed
to be linear in time; its slope is bounded by every pair of pings through whose intervals it must pass, which needs no
assumption on the distribution of delays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.clock.host_clocks import Times, intervals
from allpull.schema.base import tag
from allpull.schema.probes import ClockAnswer
from allpull.schema.results import ClockOffset, ClockResult
from allpull.units import NS_PER_S

PAUSE_NS = NS_PER_S // 10  # without a ping under way; the probe pauses for longer, but only between bursts
LEAST_SPAN_S = 1.0  # below this a drift would be the quotient of two small errors

CLOCKS: tuple[tuple[Literal["monotonic", "realtime"], slice], ...] = (
    ("monotonic", slice(0, 4)),
    ("realtime", slice(4, 8)),
)
"""Each clock, and the columns of a ping that hold its four moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Their clock minus ours at the last burst, and how fast that grows, each with a bound on its error."""

    offset_s: float
    offset_bound_s: float
    drift: float | None
    drift_bound: float | None
    round_trip_s: float


def pinged(answer: ClockAnswer, run: str, hosts: Sequence[str]) -> ClockResult:
    """The clock probe's results as offsets; ``hosts`` are the names of its hosts, in their order."""
    names = [*hosts, *(str(host) for host in range(len(hosts), answer.hosts))]
    measured = [
        offset for one in answer.against for offset in offsets(one.pings, host=names[one.host], against=names[0])
    ]
    return ClockResult(schema=tag("clock"), run=run, hosts=answer.hosts, offsets=measured)


def offsets(pings: Sequence[Sequence[int]], *, host: str, against: str) -> list[ClockOffset]:
    """Both clocks of ``host`` against those of ``against``, which it pinged; as ``compare``, with all eight moments."""
    measured = []
    for clock, columns in CLOCKS:
        one = compare([row[columns] for row in pings])  # whose offset is that of the host that was pinged
        measured.append(
            ClockOffset(
                host=host,
                against=against,
                clock=clock,
                offset_s=-one.offset_s,
                offset_bound_s=one.offset_bound_s,
                drift_ppm=None if one.drift is None else -1e6 * one.drift,
                drift_bound_ppm=None if one.drift_bound is None else 1e6 * one.drift_bound,
                round_trip_s=one.round_trip_s,
            )
        )
    return measured


def compare(pings: Sequence[Sequence[int]]) -> Comparison:
    """Their clock against ours; each ping is (sent, received, answered, back) in ns, in time order.

    Raises:
        ValueError: there is no ping, or one was back before it was sent.
    """
    stamps = np.asarray(pings, dtype=np.int64)
    if stamps.ndim != 2 or not len(stamps):
        raise ValueError("no pings")
    begin = int(stamps[0, 0])
    best = np.array([_fastest(burst, begin) for burst in bursts(stamps)])
    when_s, theta_s, half_s = best.T
    drift, drift_bound = _slope(when_s, theta_s, half_s)
    return Comparison(
        offset_s=float(theta_s[-1]),
        offset_bound_s=float(half_s[-1]),
        drift=drift,
        drift_bound=drift_bound,
        round_trip_s=float(2 * half_s.min()),
    )


def bursts(stamps: Times) -> list[Times]:
    """``stamps`` of shape (pings, 4), in time order, cut where no ping was under way for longer than ``PAUSE_NS``.

    In a burst each ping is sent when the last is back, however slow the network is.
    """
    idle_ns = stamps[1:, 0] - stamps[:-1, 3]
    return np.split(stamps, np.flatnonzero(idle_ns > PAUSE_NS) + 1)


def _fastest(burst: Times, begin: int) -> tuple[float, float, float]:
    """Of the fastest ping of a burst: our time of it since ``begin``, θ, and half its round trip, in seconds."""
    twice_theta, round_trip = intervals(burst)
    if (round_trip < 0).any():
        raise ValueError("a ping was back before it was sent: a clock was set in between")
    at = int(round_trip.argmin())
    return int(burst[at, 0] - begin) / 1e9, int(twice_theta[at]) / 2e9, int(round_trip[at]) / 2e9


def _slope(
    when_s: NDArray[np.float64], theta_s: NDArray[np.float64], half_s: NDArray[np.float64]
) -> tuple[float | None, float | None]:
    if when_s[-1] - when_s[0] < LEAST_SPAN_S:
        return None, None
    lows, highs = [], []
    for early, late in combinations(range(len(when_s)), 2):
        span = when_s[late] - when_s[early]
        middle, slack = (theta_s[late] - theta_s[early]) / span, (half_s[late] + half_s[early]) / span
        lows.append(middle - slack)
        highs.append(middle + slack)
    low, high = max(lows), min(highs)
    if low > high:  # no line passes through all: the drift itself changed, and the ends say how much at least
        low, high = high, low
    return float((low + high) / 2), float((high - low) / 2)
