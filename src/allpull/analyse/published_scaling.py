"""Speed-up and efficiency of a published series, relative to its smallest size: what stands beside measured ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allpull.schema.studied import PublishedPoint, PublishedSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativePoint:
    """A published point, and how it compares with the smallest size of its series."""

    point: PublishedPoint
    times_ranks: float
    """How many times as many ranks as the smallest size it has."""
    speedup: float
    efficiency: float


def rate(point: PublishedPoint) -> float | None:
    """Published images/s, if above 0."""
    return point.images_per_s if point.images_per_s and point.images_per_s > 0 else None


def relative(series: PublishedSeries) -> list[RelativePoint]:
    """The points of ``series`` that can be compared with its smallest size, which is the first of them.

    One way serves for all of them: the first of ``WAYS`` that most points have. A series in which a size occurs twice
    does not grow in ranks alone, and has none.
    """
    points = sorted(series.points, key=lambda one: one.ranks)
    if len({one.ranks for one in points}) < len(points):
        return []
    base = points[0]
    pairs = [[(one, speedup) for one in points if (speedup := way(one, base)) is not None] for way in WAYS]
    known = max(pairs, key=len)
    if len(known) < 2:
        return []
    return [
        RelativePoint(
            point=one, times_ranks=one.ranks / base.ranks, speedup=own, efficiency=own * base.ranks / one.ranks
        )
        for one, own in known
    ]


def _by_rate(point: PublishedPoint, base: PublishedPoint) -> float | None:
    mine, other = rate(point), rate(base)
    return mine / other if mine and other else None


def _by_epoch(point: PublishedPoint, base: PublishedPoint) -> float | None:
    return _by_time(point.epoch_time_s, base.epoch_time_s)


def _by_training(point: PublishedPoint, base: PublishedPoint) -> float | None:
    return _by_time(point.train_time_s, base.train_time_s)


def _by_time(mine_s: float | None, base_s: float | None) -> float | None:
    return base_s / mine_s if mine_s and base_s and mine_s > 0 < base_s else None


def _as_stated(point: PublishedPoint, base: PublishedPoint) -> float | None:
    """The stated speed-up, where it is over ``base`` as well."""
    if point is base:
        return 1.0 if base.speedup in {None, 1.0} else None
    own = point.speedup if point.speedup and point.speedup > 0 else None
    is_over_base = base.speedup == 1.0 or (base.speedup is None and point.speedup_base is None)
    return own if is_over_base else None


WAYS: tuple[Callable[[PublishedPoint, PublishedPoint], float | None], ...] = (
    *(_by_rate, _by_epoch, _by_training, _as_stated),
)
"""How many times as fast as its base a point is, the most direct way first."""
