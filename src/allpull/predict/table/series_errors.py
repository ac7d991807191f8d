"""How wrong ``growth`` was about published series that were held back: the widths of its intervals.

Each published series is calibrated on its smallest sizes, and its other sizes are predicted. The size of an error grows
with the doublings beyond the calibration, and with the loss per doubling that the calibration itself had::

    expected |ln(true ÷ predicted)| = floor + a · doublings + b · loss · doublings

with non-negative coefficients by least squares. Errors are divided by what is expected of them; the interval is their
quantiles, each taken from coefficients that were fitted without the source of that series (conformal prediction:
Vovk, Gammerman & Shafer 2005; with groups held back, Dunn, Wasserman & Ramdas 2023). Every series counts the same,
however many sizes it has.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from allpull.predict.table.growth import Growth, Size, fitted
from allpull.published.figures import Figure
from allpull.published.tables import SETUP, Point

Floats = npt.NDArray[np.float64]

COVERED = 0.9  # of an interval
LEAST_EXPECTED = 0.005  # of an error: no rate repeats more closely from day to day
GROUPED_BY = tuple(column for column in SETUP if column != "source")
"""Columns that are equal within a setup: sizes of one series may have been published in several places."""
_OWNER = re.compile(r"[^ @/]+(?:/[^ @/]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """One size of a series that was predicted from its smallest ones; ``error`` is ln(true ÷ predicted)."""

    series: tuple[str, ...]
    owner: str
    ranks: int
    doublings: float
    features: tuple[float, ...]
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The interval of a prediction: ``expected`` errors times the quantiles ``low`` and ``high`` of published ones."""

    coefficients: tuple[float, ...]
    low: float
    high: float
    series: int
    doublings: float
    """The furthest that any published series was predicted."""

    def interval(self, growth: Growth, ranks: int) -> tuple[float, float]:
        """Lower and upper bound of the rate at ``ranks``, of which ``COVERED`` of all cases are within."""
        expected = _expected(np.array([_features(growth, ranks)]), np.array(self.coefficients))[0]
        rate = growth.rate(ranks)
        return rate * math.exp(self.low * expected), rate * math.exp(self.high * expected)


def groups(points: Iterable[Point]) -> dict[tuple[str, ...], list[Size]]:
    """The sizes of every series and setup, each by its ranks; where a size was published twice, the median rate.

    Rates in images/s where all of its points have them, or else speed-ups. Key: the series, what rates are of, and
    the columns ``GROUPED_BY``.
    """
    by_key: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        setup = (text for column, text in zip(SETUP, point.setup, strict=True) if column in GROUPED_BY)
        by_key.setdefault((point.series, *setup), []).append(point)
    found: dict[tuple[str, ...], list[Size]] = {}
    for key, members in by_key.items():
        for unit, rate_of in RATES.items():
            rated = [(point, rate) for point in members if (rate := rate_of(point)) is not None]
            if len({point.gpus for point, _ in rated}) > 1:
                found[key[0], unit, *key[1:]] = _sizes(rated)
                break
    return found


RATES: dict[str, Callable[[Point], Figure | None]] = {
    "images/s": lambda point: point.rate,
    "× the base": lambda point: None if point.speedup is None else _rounded(point.speedup),
}
"""Unit → the rate of a point in it."""


def held_back(published: Iterable[Point], calibrate: int) -> list[HeldBack]:
    """Every published size beyond the ``calibrate`` smallest of its series, predicted from those."""
    records = []
    for key, sizes in groups(published).items():
        if len(sizes) <= calibrate:
            continue
        growth = fitted(sizes[:calibrate])
        records += [
            HeldBack(
                series=key,
                owner=sizes[0].owner,
                ranks=size.ranks,
                doublings=growth.doublings(size.ranks),
                features=_features(growth, size.ranks),
                error=math.log(size.rate.middle / growth.rate(size.ranks)),
            )
            for size in sizes[calibrate:]
        ]
    return records


def owner_of(source: str) -> str:
    """Whose measurements these are: the beginning of their source.

    >>> owner_of("github:richardkxu/distributed-pytorch@b2a3e17 (plot.py)")
    'github:richardkxu/distributed-pytorch'
    """
    match = _OWNER.match(source)
    return match[0] if match else source


def learned(records: Sequence[HeldBack]) -> Widths:
    """The widths that errors on ``records`` ask for.

    Raises:
        ValueError: they are of fewer than three owners, so that none can be held back from others.
    """
    owners = sorted({one.owner for one in records})
    if len(owners) < 3:
        raise ValueError("too few published series to learn from")
    weights = _weights(records)
    features = np.array([one.features for one in records])
    errors = np.array([one.error for one in records])
    scores = np.empty(len(records))
    for owner in owners:
        own = np.array([one.owner == owner for one in records])
        scores[own] = errors[own] / _expected(features[own], _coefficients(features[~own], errors[~own], weights[~own]))
    count = len({one.series for one in records})
    tail = min(1.0, (1 - (1 - COVERED) / 2) * (count + 1) / count)
    return Widths(
        coefficients=tuple(_coefficients(features, errors, weights)),
        low=-_quantile(-scores, weights, tail),
        high=_quantile(scores, weights, tail),
        series=count,
        doublings=max(one.doublings for one in records),
    )


def _features(growth: Growth, ranks: int) -> tuple[float, ...]:
    doublings = growth.doublings(ranks)
    return 1.0, doublings, growth.loss * doublings


def _expected(features: Floats, coefficients: Floats) -> Floats:
    return np.maximum(features @ coefficients, LEAST_EXPECTED)


def _coefficients(features: Floats, errors: Floats, weights: Floats) -> Floats:
    """Non-negative least squares: the best of all subsets of features whose own solution is non-negative."""
    root = np.sqrt(weights)
    design, sizes = features * root[:, None], np.abs(errors) * root
    best, least = np.zeros(design.shape[1]), np.inf
    for kept in product((False, True), repeat=design.shape[1]):
        coefficients = np.zeros(design.shape[1])
        coefficients[list(kept)] = np.linalg.lstsq(design[:, kept], sizes, rcond=None)[0]
        residual = float(np.sum((design @ coefficients - sizes) ** 2))
        if residual < least and (coefficients >= 0).all():
            best, least = coefficients, residual
    return best


def _weights(records: Sequence[HeldBack]) -> Floats:
    sizes = Counter(one.series for one in records)
    return np.array([1 / sizes[one.series] for one in records])


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    """The smallest value that ``share`` of all weight does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, share - 1e-12)), values.size - 1)])


def _rounded(speedup: Figure) -> Figure:
    """A speed-up that is taken to be rounded, not cut off (``published.tables`` allows for both)."""
    return Figure(speedup.low, speedup.low + (speedup.high - speedup.low) * 2 / 3)


def _sizes(rated: Sequence[tuple[Point, Figure]]) -> list[Size]:
    by_ranks: dict[int, list[tuple[Point, Figure]]] = {}
    for point, rate in rated:
        by_ranks.setdefault(point.gpus, []).append((point, rate))
    sizes = []
    for ranks, same in sorted(by_ranks.items()):
        point, rate = sorted(same, key=lambda one: one[1].middle)[(len(same) - 1) // 2]
        sizes.append(Size(ranks=ranks, rate=rate, hosts=point.nodes, owner=owner_of(point.setup[0])))
    return sizes
