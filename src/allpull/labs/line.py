"""A line fitted by stochastic gradient descent: small enough that its whole loss surface can be drawn.

The task of the course "SGD by hand" (CSCS, Piz Daint): y = 2x + noise, the noise uniform in ±0.5. The loss is the mean
squared error. With x uniform in ±0.5 and a rate of 0.5, a full batch removes the error of the offset in one update, and
1/12 of the slope's, since mean(x) = 0 and 2 · rate · mean(x²) = 1/12; the loss ends near 1/12, the noise's variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

SLOPE, NOISE, WIDTH = 2.0, 0.5, 0.5
START = (0.4, 0.4)
"""Slope and offset before the first update; on the map, far from the optimum."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Points of the noisy line, ``x`` and ``y`` of shape (samples,)."""

    x: Floats
    y: Floats


def samples(count: int, seed: int) -> Samples:
    """``count`` points, their x evenly spaced; the noise is the same for one seed everywhere."""
    x = WIDTH * (2 * np.arange(count) + 1 - count) / count
    return Samples(x=x, y=SLOPE * x + np.random.default_rng(seed).uniform(-NOISE, NOISE, count))


def loss(points: Samples, slope: Floats | float, offset: Floats | float) -> Floats:
    """Mean squared error of lines over ``points``; slopes and offsets of one shape, which is the result's.

    It is a quadratic form in slope and offset, so the means over the points suffice, however many lines there are.
    """
    x, y = points.x, points.y
    slope, offset = np.asarray(slope, dtype=np.float64), np.asarray(offset, dtype=np.float64)
    value: Floats = (
        slope**2 * np.mean(x * x)
        + 2 * slope * offset * np.mean(x)
        + offset**2
        - 2 * slope * np.mean(x * y)
        - 2 * offset * np.mean(y)
        + np.mean(y * y)
    )
    return value


def optimum(points: Samples) -> tuple[float, float]:
    """Slope and offset of the least squares line."""
    slope, offset = np.polyfit(points.x, points.y, 1)
    return float(slope), float(offset)


def gradient(points: Samples, chosen: Indices, slope: float, offset: float) -> tuple[float, float]:
    """Derivatives of the loss over the ``chosen`` points by slope and offset."""
    x, y = points.x[chosen], points.y[chosen]
    left = slope * x + offset - y
    return float(2 * np.mean(left * x)), float(2 * np.mean(left))


def order(count: int, seed: int, epoch: int) -> Indices:
    """The order of the samples in ``epoch``: shuffled anew for each, the same for every rank."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def descend(points: Samples, *, batch: int, epochs: int, rate: float, seed: int, drop_last: bool = False) -> Floats:
    """Slope and offset before each update and after the last, shape (updates + 1, 2).

    A last, smaller batch counts, unless ``drop_last``.
    """
    slope, offset = START
    path = [(slope, offset)]
    for epoch in range(epochs):
        shuffled = order(points.x.size, seed, epoch)
        for begin in range(0, shuffled.size - (batch - 1 if drop_last else 0), batch):
            by_slope, by_offset = gradient(points, shuffled[begin : begin + batch], slope, offset)
            slope, offset = slope - rate * by_slope, offset - rate * by_offset
            path.append((slope, offset))
    return np.array(path)


def contours(points: Samples, levels: Floats, corners: int = 90) -> Floats:
    """Where the loss is ``levels`` above its minimum: closed curves, shape (levels, corners + 1, 2).

    The loss is L* + d·A·d with d from the optimum, so each is an ellipse: d = √level · A^(−1/2) · (cos t, sin t).
    """
    mean = float(np.mean(points.x))
    matrix = np.array([[float(np.mean(points.x**2)), mean], [mean, 1.0]])
    values, vectors = np.linalg.eigh(matrix)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    turn = np.linspace(0, 2 * np.pi, corners + 1)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=1) @ root.T
    curves: Floats = np.sqrt(levels)[:, None, None] * circle[None] + np.array(optimum(points))
    return curves


def shown(updates: int, first: int = 200, most: int = 500) -> Indices:
    """Which of the positions 0 to ``updates`` a page shows: the ``first``, where most happens, then evenly spaced ones.

    >>> shown(3).tolist()
    [0, 1, 2, 3]
    >>> shown(150_000).size
    500
    """
    if updates < most:
        return np.arange(updates + 1)
    return np.unique(np.concatenate([np.arange(first), np.linspace(first, updates, most - first).round().astype(int)]))
