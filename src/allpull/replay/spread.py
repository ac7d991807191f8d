"""The uncertainty of a ratio of replayed times: a block bootstrap over steps, of all series at once.

Replays are not repeated for it. A replay gives what each step adds to its time, so sums of these increments over
resampled steps are resampled times. For two replays the same steps are drawn, so that what they share cancels in their
ratio. Steps are drawn in blocks (``analyse.statistics``). Odd steps, such as those with an evaluation, are resampled
among themselves, each kind of them: drawn from all steps, there would be between none and twice as many of them.

How many odd steps a window has depends on where it begins, unless it spans whole periods. An event every p steps
occurs ⌊n/p⌋ or ⌈n/p⌉ times in n steps, less than one away from the long-run n/p; so resamples have up to one more or
one fewer, in exchange for other steps, or as many as cover n/p where three events and more have shown p. Two events
have one distance, which does not show a period.

A window is short, often 20 to 100 steps, and then its blocks are too short as well: the spread is taken to be at least
that of a first-order autoregressive series (``analyse.statistics.steps_per_draw``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from allpull.analyse.effect import Part, satterthwaite
from allpull.analyse.statistics import (
    CHUNK,
    MAX_POINTS,
    MIN_BLOCKS,
    MIN_POINTS,
    RESAMPLES,
    block_length,
    steps_per_draw,
    student_t,
)
from allpull.analyse.steps.grid import Floats
from allpull.replay.window import Bools, Kinds
from allpull.schema.results import Interval

EVENTS = 3  # two equal distances: fewer events do not show a period

Statistic = Callable[[Floats], Floats]
"""Totals over steps, shape (…, columns), to a number each, shape (…)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resampled:
    """A number, its value in each resample, (``RESAMPLES``,), and the number of independent draws behind it.

    ``resampled`` is None where there are too few steps to resample.
    """

    value: float
    resampled: Floats | None
    blocks: float

    def times(self, factor: float) -> Resampled:
        """``factor`` times as large."""
        resampled = None if self.resampled is None else self.resampled * factor
        return Resampled(value=self.value * factor, resampled=resampled, blocks=self.blocks)

    def product(self, other: Resampled) -> Resampled:
        """The product with a number of another window, resampled independently."""
        value = self.value * other.value
        if self.resampled is None or other.resampled is None:
            return Resampled(value=value, resampled=None, blocks=MIN_BLOCKS)
        parts = [
            Part(variance=float((one.resampled / one.value).var()), freedom=one.blocks - 1)
            for one in (self, other)
            if one.resampled is not None
        ]
        return Resampled(value=value, resampled=self.resampled * other.resampled, blocks=_blocks(parts))

    def interval(self, most: float = math.inf) -> Interval:
        """The value and its 95 % bounds, within 0 and ``most``; None where there are none.

        They are quantiles of the resamples, widened by Student's t as in ``statistics.ratio_interval`` and centred on
        the value: the largest of many ranks is larger still in a resample, and that bias is no spread (Efron &
        Tibshirani 1993, ch. 10).
        """
        if self.resampled is None or not np.isfinite(self.resampled).all():
            return Interval(value=self.value, low=None, high=None)
        tail = NormalDist().cdf(-student_t(self.blocks - 1))
        low, middle, high = np.quantile(self.resampled, [tail, 0.5, 1 - tail]).tolist()
        low, high = self.value - (middle - low), self.value + (high - middle)
        return Interval(value=self.value, low=max(min(low, self.value), 0.0), high=min(max(high, self.value), most))


def ratio(numerator: Floats, denominator: Floats, odd: Bools | Kinds, *, seed: int = 0) -> Resampled:
    """Σ numerator ÷ Σ denominator, both (steps,) and of one window; resamples keep the number of its ``odd`` steps."""
    value = float(numerator.sum() / denominator.sum())
    return resample(
        np.stack([numerator, denominator], axis=1),
        odd,
        lambda totals: totals[..., 0] / totals[..., 1],
        moves=numerator - value * denominator,
        seed=seed,
    )


def resample(series: Floats, odd: Bools | Kinds, statistic: Statistic, *, moves: Floats, seed: int = 0) -> Resampled:
    """``statistic`` of the sums of ``series`` over steps, and over resampled steps.

    Args:
        series: (steps, columns), in time order.
        odd: (steps,), the steps that are resampled among themselves, or the kinds of each, those of equal ones.
        statistic: of the sums over steps.
        moves: (steps,), by how much each step moves the statistic: its linear part, up to a factor. Its
            autocorrelation determines the length of the blocks.
        seed: of the resampling; the same seed and series give the same numbers.
    """
    value = float(statistic(series.sum(axis=0)))
    if odd.size < MIN_POINTS:
        return Resampled(value=value, resampled=None, blocks=MIN_BLOCKS)
    rng = np.random.default_rng(seed)
    totals = np.zeros((RESAMPLES, series.shape[1]))
    parts = []
    kinds = odd.astype(np.intp)
    for kind in np.unique(alike := _alike(kinds)):
        chosen = alike == kind
        part, totals_of_part = _part(_grouped(series[chosen]), _grouped(moves[chosen][:, None])[:, 0], rng)
        totals += totals_of_part
        parts.append(part)
    bits = range(int(kinds.max()).bit_length())
    for chosen in np.unique([kinds >> bit & 1 for bit in bits], axis=0) > 0 if bits else ():
        if most := _more_or_fewer(chosen):
            more = rng.uniform(-most, most, RESAMPLES)
            totals += more[:, None] * (series[chosen].mean(axis=0) - series[~chosen].mean(axis=0))
            apart = most * float(moves[chosen].mean() - moves[~chosen].mean())
            parts.append(Part(variance=apart**2 / 3, freedom=float(MAX_POINTS)))  # of a uniform number
    with np.errstate(divide="ignore", invalid="ignore"):  # ``interval`` checks for values that are not finite
        resampled = statistic(totals)
    return Resampled(value=value, resampled=resampled, blocks=_blocks(parts))


def as_often(odd: Bools) -> bool:
    """Whether a window has as many ``odd`` steps, (steps,), as the long run: none, only those, or whole periods.

    A stretch of ``MIN_POINTS`` or more is no event but another state, whose length is taken as it is.

    >>> as_often(np.arange(32) % 8 == 7), as_often(np.arange(35) % 8 == 7), as_often(np.arange(16) % 8 == 7)
    (True, False, False)
    """
    steps = odd.size
    edges = np.flatnonzero(np.diff(np.concatenate([[False], odd, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if not begins.size or odd.all() or (ends - begins).max() >= MIN_POINTS:
        return True
    periods = np.flatnonzero(steps % np.arange(1, steps // 2 + 1) == 0) + 1
    is_whole = any((odd[period:] == odd[:-period]).all() for period in periods.tolist())
    return begins.size >= EVENTS and is_whole


def _alike(kinds: Kinds) -> Kinds:
    """``kinds`` (steps,), of which those of a single step are taken as one: alone it does not show how steps vary."""
    found, place, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    single = (counts == 1) & (found > 0)
    return np.where(single[place], -1, kinds)


def _more_or_fewer(odd: Bools) -> float:
    """How many ``odd`` steps, (steps,), more or fewer than a window has the long run may have in as many steps."""
    if as_often(odd):
        return 0.0
    places = np.flatnonzero(odd)
    period = int(places[1] - places[0]) if places.size >= EVENTS else 0
    if not period or (np.diff(places) != period).any():
        return 1.0
    return min(1.0, 2 * abs(places.size - odd.size / period))  # so that 95 % of a uniform number cover it


def _part(series: Floats, moves: Floats, rng: np.random.Generator) -> tuple[Part, Floats]:
    """Totals of steps resampled among themselves, (``RESAMPLES``, columns), with the spread that they should have.

    The part is their share of the variance of the statistic, with its degrees of freedom.
    """
    n = len(series)
    length = block_length(moves)
    totals = _resampled_totals(np.column_stack([series, moves]), length, rng)
    per_draw = steps_per_draw(moves)
    resampled = float(totals[:, -1].var())
    wanted = max(resampled * n / max(n - 1, 1), n * float(moves.var(ddof=1)) * per_draw if n > 1 else 0.0)
    wider = math.sqrt(wanted / resampled) if resampled > 0 else 1.0
    middle = series.sum(axis=0)
    freedom = max(n / max(length, per_draw) - 1, 1.0)
    return Part(variance=wanted, freedom=freedom), middle + wider * (totals[:, :-1] - middle)


def _blocks(parts: list[Part]) -> float:
    """Independent draws behind the sum of ``parts``, at least ``MIN_BLOCKS``."""
    _, freedom = satterthwaite(parts)
    return max(min(freedom, float(MAX_POINTS)) + 1, MIN_BLOCKS)


def _grouped(series: Floats) -> Floats:
    """``series`` (steps, columns), or its sums over ``MAX_POINTS`` groups of neighbours where it is longer."""
    if len(series) <= MAX_POINTS:
        return series
    starts = np.linspace(0, len(series), MAX_POINTS, endpoint=False).astype(np.intp)
    sums: Floats = np.add.reduceat(series, starts, axis=0)
    return sums


def _resampled_totals(series: Floats, length: float, rng: np.random.Generator) -> Floats:
    """Sums over stationary resamples of ``series`` (n, columns), blocks of mean ``length`` on the closed circle."""
    n = len(series)
    position = np.arange(n)
    totals = np.empty((RESAMPLES, series.shape[1]))
    for first in range(0, RESAMPLES, CHUNK):
        rows = min(CHUNK, RESAMPLES - first)
        begins = rng.random((rows, n)) < 1 / length
        begins[:, 0] = True
        begun_at = np.maximum.accumulate(np.where(begins, position, 0), axis=1)
        starts = np.take_along_axis(rng.integers(n, size=(rows, n)), begun_at, axis=1)
        index = (starts + position - begun_at) % n + n * np.arange(rows)[:, None]
        times_drawn = np.bincount(index.ravel(), minlength=rows * n).reshape(rows, n)
        totals[first : first + rows] = times_drawn.astype(np.float64) @ series
    return totals
