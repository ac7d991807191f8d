"""Distributions as tables of quantiles with a fitted upper tail: of them the maximum over N is one product.

A table has one row per draw and one column per level; levels are dense in the upper tail, since of N ranks the largest
is what counts. With U uniform the maximum of K independent values of distribution F is F^-1(U^(1/K)), so one look-up
serves any K, whole or not. Expectations are taken on Gumbel's scale, x = −ln(−ln U), on which the quantiles of maxima
with light tails are nearly straight (Fisher & Tippett 1928).

Above a high quantile the tail is a generalised Pareto distribution (Pickands 1975), by the estimator of Zhang &
Stephens (2009, Technometrics 51:316), whose shape is drawn towards 0 where exceedances are few (as Vehtari et al. 2024,
JMLR 25, app. C, do towards another value). Shape 0 is an exponential tail; from 1 on the mean is infinite, and no
tail is taken to be heavier.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_EXCEEDED = 1e-9  # share above the last level: once in 10,000 steps of 100,000 ranks
DENSE_BELOW = 0.05  # share above a level: from here on levels are spaced evenly in its logarithm
TAIL_SHARE = 0.05  # of the values that a tail is fitted to
MOST_IN_TAIL = 200  # exceedances: the shape is then known to 0.07
ENOUGH_IN_TAIL = 20  # exceedances: with fewer values above the quantile, a lower one is taken
FEW = 200  # values: below, the tail is not identified
SHAPE_WEIGHT = 5.0  # exceedances that the prior shape 0 counts for
SHAPE_SD = 0.25  # of the shape that is not identified: from bounded (−0.5) to a Pareto with infinite variance (0.5)
MOST_SHAPE = 1.0  # the largest of N values then grows no faster than N: pauses that add up, and none is longer
LONGEST = 1e4  # steps: what is rarer than once in so many is in no mean
ATOMS = 40  # of each of two distributions that are added

_LINEAR = np.linspace(0.9975, DENSE_BELOW, 100)
_DENSE = np.geomspace(DENSE_BELOW, LEAST_EXCEEDED, 78)[1:]
EXCEEDED: Floats = np.concatenate([_LINEAR, _DENSE])
"""The levels: the share of values above, (levels,), from the smallest value to the largest."""
_SCALE: Floats = -np.log(EXCEEDED)

_GUMBEL = np.linspace(-2.2, np.log(LONGEST), 72)
_AT = np.exp(-np.exp(-_GUMBEL))
_EDGES = np.concatenate([[0.0], (_AT[1:] + _AT[:-1]) / 2, [1.0]])
WEIGHTS: Floats = np.diff(_EDGES)
"""The weight of each of ``maximum``'s values in a mean."""


def normal(sd: Floats) -> Floats:
    """The table of Normal distributions around 0 with ``sd`` (draws,)."""
    table: Floats = sd[:, None] * _normal_levels()
    return table


@cache
def _normal_levels() -> Floats:
    return np.array([-NormalDist().inv_cdf(share) for share in EXCEEDED.tolist()])


def fitted(values: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The table of ``values`` (draws, n), and the shape of the tail of each draw.

    The body is the sample's; above a high quantile follows the tail. Its shape gets its standard error, (1 + ξ) ÷ √n
    (Smith 1987), since a bootstrap of few exceedances has too little spread, and with ``FEW`` values ``SHAPE_SD`` more.
    """
    draws, count = values.shape
    ordered = np.sort(values, axis=1)
    above = min(max(round(TAIL_SHARE * count), min(ENOUGH_IN_TAIL, count // 4), 1), MOST_IN_TAIL)
    tail_share = above / count
    positions = (np.arange(count) + 0.5) / count
    threshold = _at(ordered, positions, np.array([1 - tail_share]))[:, 0]
    table = _at(ordered, positions, 1 - EXCEEDED)
    shape, scale = pareto(np.maximum(ordered[:, -above:] - threshold[:, None], 0.0))
    error = np.hypot((1 + shape) / above**0.5, SHAPE_SD if count < FEW else 0.0)
    shape = np.where(scale > 0, np.minimum(shape + error * rng.normal(size=draws), MOST_SHAPE), 0.0)
    tail = tail_share > EXCEEDED
    table[:, tail] = threshold[:, None] + _excess(shape, scale, EXCEEDED[tail] / tail_share)
    return np.maximum.accumulate(table, axis=1), shape


def pareto(excess: Floats) -> tuple[Floats, Floats]:
    """Shape and scale, (draws,) each, of generalised Pareto distributions of ``excess`` (draws, n), sorted, ≥ 0."""
    count = excess.shape[1]
    largest = excess[:, -1]
    flat = largest <= 0
    safe = np.where(flat[:, None], np.linspace(0.5, 1.0, count), np.maximum(excess, 1e-12 * largest[:, None]))
    candidates = 30 + int(count**0.5)
    grid = 1 - np.sqrt(candidates / (np.arange(1, candidates + 1) - 0.5))
    rates = grid / (3 * safe[:, [max(int(count / 4 + 0.5) - 1, 0)]]) + 1 / safe[:, [-1]]
    shapes = np.log1p(-rates[:, :, None] * safe[:, None, :]).mean(axis=2)
    likelihood = count * (np.log(-rates / shapes) - shapes - 1)
    weights = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    rate = (rates * weights).sum(axis=1) / weights.sum(axis=1)
    shape = np.log1p(-rate[:, None] * safe).mean(axis=1)
    scale = -shape / rate
    shape = shape * count / (count + SHAPE_WEIGHT)
    return np.where(flat, 0.0, shape), np.where(flat, 0.0, scale)


def _excess(shape: Floats, scale: Floats, left: Floats) -> Floats:
    """Excess over the threshold that the share ``left`` (levels,) of exceedances is above, (draws, levels)."""
    heavy = np.where(np.abs(shape) < 1e-6, 1e-6, shape)[:, None]
    excess: Floats = scale[:, None] * np.expm1(-heavy * np.log(left)) / heavy
    return excess


def _at(ordered: Floats, positions: Floats, levels: Floats) -> Floats:
    """Quantiles of sorted rows ``ordered`` (draws, n), at ``positions`` (n,), interpolated at ``levels``."""
    after = np.clip(np.searchsorted(positions, levels), 1, max(positions.size - 1, 1))
    if positions.size == 1:
        return np.repeat(ordered, levels.size, axis=1)
    share = np.clip((levels - positions[after - 1]) / (positions[after] - positions[after - 1]), 0.0, 1.0)
    quantiles: Floats = ordered[:, after - 1] * (1 - share) + ordered[:, after] * share
    return quantiles


def maximum(table: Floats, count: float) -> Floats:
    """The maximum of ``count`` ≥ 0 independent values: its quantiles, (draws, weights), whose mean is by ``WEIGHTS``.

    The maximum of none is −∞.
    """
    if count <= 0:
        return np.full((table.shape[0], WEIGHTS.size), -np.inf)
    return _looked_up(table, -np.expm1(-np.exp(-_GUMBEL) / count))


def maximum_table(table: Floats, count: float) -> Floats:
    """The table of the maximum of ``count`` > 0 independent values."""
    return _looked_up(table, -np.expm1(np.log1p(-EXCEEDED) / count))


def _looked_up(table: Floats, exceeded: Floats) -> Floats:
    scale = np.clip(-np.log(exceeded), _SCALE[0], _SCALE[-1])
    after = np.clip(np.searchsorted(_SCALE, scale), 1, _SCALE.size - 1)
    share = (scale - _SCALE[after - 1]) / (_SCALE[after] - _SCALE[after - 1])
    quantiles: Floats = table[:, after - 1] * (1 - share) + table[:, after] * share
    return quantiles


def mean_of_larger(first: Floats, first_weights: Floats, second: Floats, second_weights: Floats) -> Floats:
    """The mean of the larger of two independent values, by their quantiles (draws, n) and weights (n,): (draws,)."""
    larger = np.maximum(first[:, :, None], second[:, None, :])
    mean: Floats = np.einsum("dij,i,j->d", larger, first_weights, second_weights, optimize=True)
    return mean


def added(first: Floats, second: Floats) -> Floats:
    """The table of the sum of two independent values, by their tables."""
    if not second.any():
        return first
    if not first.any():
        return second
    atoms, weights = _atoms()
    sums = (_looked_up(first, atoms)[:, :, None] + _looked_up(second, atoms)[:, None, :]).reshape(first.shape[0], -1)
    joint = (weights[:, None] * weights[None, :]).ravel()
    order = np.argsort(-sums, axis=1)
    share = joint[order]
    above = np.cumsum(share, axis=1) - share / 2
    descending = np.take_along_axis(sums, order, axis=1)
    level = np.log(EXCEEDED)
    rows = [np.interp(level, np.log(mine), values) for mine, values in zip(above, descending, strict=True)]
    table = np.array(rows)
    wanted = mean(first) + mean(second)  # atoms shift it by a hundredth of the spread
    return table + (wanted - mean(table))[:, None]


def mean(table: Floats) -> Floats:
    """The mean of each row of a table, (draws,)."""
    return maximum(table, 1) @ WEIGHTS


@cache
def _atoms() -> tuple[Floats, Floats]:
    """Levels at the middles of bins, and the weight of each bin."""
    body, tail = np.linspace(1, 0.1, ATOMS // 2, endpoint=False), np.geomspace(0.1, LEAST_EXCEEDED, ATOMS // 2)
    edges = np.concatenate([body, tail, [0.0]])
    middles = np.sqrt(edges[:-1] * np.maximum(edges[1:], LEAST_EXCEEDED / 4))
    middles[: ATOMS // 2] = (edges[: ATOMS // 2] + edges[1 : ATOMS // 2 + 1]) / 2
    return middles, -np.diff(edges)


def median(quantiles: Floats) -> Floats:
    """The median of what ``maximum`` returns, (draws,)."""
    middle: Floats = quantiles[:, int(np.searchsorted(_AT, 0.5))]
    return middle
