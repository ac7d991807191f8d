"""Offset and drift between two clocks, from pings, with bounds on their error.

A ping was sent at s and back at b on our clock, received at r and answered at a on theirs. However long its two ways
took, their clock minus ours was within θ ± ρ/2 with θ = ((r − s) + (a − b))/2 and ρ = (b − s) − (a − r), the round
trip (RFC 5905 §8). The true offset is assumed to be linear in time; its slope is bounded by every pair of pings
through whose intervals it must pass, which needs no assumption on the distribution of delays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

BURST = 100  # pings, of which only the fastest is used
LEAST_SPAN_S = 1.0  # below this a drift would be the quotient of two small errors

Stamps = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Their clock minus ours at the last burst, and how fast that grows, each with a bound on its error."""

    offset_s: float
    offset_bound_s: float
    drift: float | None
    drift_bound: float | None
    round_trip_s: float


def compare(pings: Sequence[Sequence[int]]) -> Comparison:
    """Their clock against ours; each ping is (sent, received, answered, back) in ns, in time order.

    Raises:
        ValueError: there is no ping, or one was back before it was sent.
    """
    stamps = np.asarray(pings, dtype=np.int64)
    if stamps.ndim != 2 or not len(stamps):
        raise ValueError("no pings")
    begin = int(stamps[0, 0])
    best = np.array([_fastest(stamps[first : first + BURST], begin) for first in range(0, len(stamps), BURST)])
    when_s, theta_s, half_s = best.T
    drift, drift_bound = _slope(when_s, theta_s, half_s)
    return Comparison(
        offset_s=float(theta_s[-1]),
        offset_bound_s=float(half_s[-1]),
        drift=drift,
        drift_bound=drift_bound,
        round_trip_s=float(2 * half_s.min()),
    )


def intervals(stamps: Stamps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """2θ and ρ of each ping, in ns; ``stamps`` has shape (pings, 4): sent, received, answered, back.

    Whole nanoseconds, because clocks that count from 1970 exceed a float's digits.
    """
    sent, received, answered, back = stamps.T
    return (received - sent) + (answered - back), (back - sent) - (answered - received)


def _fastest(burst: Stamps, begin: int) -> tuple[float, float, float]:
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
