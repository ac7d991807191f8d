"""The interval covers the truth as often as it says, on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from allpull.analyse import statistics
from allpull.analyse.statistics import (
    MAX_POINTS,
    MIN_POINTS,
    Floats,
    block_length,
    grouped,
    long_run_variance,
    ratio_interval,
)

RHO = 0.7
SERIES = 200


def ar1(rng: np.random.Generator, series: int, points: int, rho: float) -> Floats:
    """Rows of a stationary first-order autoregression with unit innovations and mean 0."""
    x = np.empty((series, points))
    x[:, 0] = rng.normal(size=series) / math.sqrt(1 - rho**2)
    noise = rng.normal(size=(series, points))
    for k in range(1, points):
        x[:, k] = rho * x[:, k - 1] + noise[:, k]
    return x


def width(interval: object) -> float:
    return interval.high - interval.low  # type: ignore[attr-defined]


def iid_interval(series: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """The textbook bootstrap, which takes points for independent."""
    means = series[rng.integers(series.size, size=(500, series.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def test_an_autocorrelated_series_is_covered_and_the_iid_bootstrap_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 500)  # enough for a coverage, and four times as fast
    rng = np.random.default_rng(20)
    truth = 50.0
    ours = textbook = 0
    for number, series in enumerate(truth + ar1(rng, SERIES, 500, RHO)):
        interval = ratio_interval(series, np.ones_like(series), seed=number)
        assert interval.low is not None
        assert interval.high is not None
        ours += interval.low <= truth <= interval.high
        low, high = iid_interval(series, rng)
        textbook += low <= truth <= high
    assert ours / SERIES >= 0.88
    assert textbook / SERIES <= 0.70  # √((1−ρ)/(1+ρ)) = 0.42 of the width: about 59 % in theory


def test_an_independent_series_has_the_textbook_width() -> None:
    rng = np.random.default_rng(21)
    widths = []
    for number in range(30):
        series = 50 + rng.normal(size=200)
        widths.append(width(ratio_interval(series, np.ones(200), seed=number)) / series.std(ddof=1))
    assert np.mean(widths) == pytest.approx(2 * 1.972 / math.sqrt(200), rel=0.15)  # 1.972: t with 199 degrees


def test_a_ratio_of_correlated_sums_has_the_width_of_the_delta_method() -> None:
    rng = np.random.default_rng(22)
    time = 0.1 + 0.01 * rng.random(400)
    samples = 640 * time + rng.normal(scale=0.5, size=400)  # longer steps held more: the ratio varies little
    interval = ratio_interval(samples, time)
    value = samples.sum() / time.sum()
    influence = (samples - value * time) / time.mean()
    assert interval.value == value
    assert width(interval) == pytest.approx(2 * 1.966 * influence.std(ddof=1) / 20, rel=0.15)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.8])
def test_the_long_run_variance_of_an_autoregression_is_the_analytic_one(rho: float) -> None:
    rng = np.random.default_rng(23)
    found = [long_run_variance(series) for series in ar1(rng, 40, 4000, rho)]
    assert np.mean(found) == pytest.approx(1 / (1 - rho) ** 2, rel=0.1)


def test_the_block_length_of_an_autoregression_is_the_optimal_one() -> None:
    # Σ|k|R(k) ÷ ΣR(k) = 2ρ/(1−ρ²), so b = (2ρ/(1−ρ²))^⅔ n^⅓
    rng = np.random.default_rng(24)
    found = np.median([block_length(series) for series in ar1(rng, 60, 2000, RHO)])
    assert found == pytest.approx((2 * RHO / (1 - RHO**2)) ** (2 / 3) * 2000 ** (1 / 3), rel=0.2)


def test_a_long_series_is_grouped_without_losing_its_correlation() -> None:
    rng = np.random.default_rng(25)
    points = 5 * MAX_POINTS
    widths = [
        width(ratio_interval(50 + series, np.ones(points), seed=number))
        for number, series in enumerate(ar1(rng, 12, points, RHO))
    ]
    assert np.mean(widths) == pytest.approx(2 * 1.96 / (1 - RHO) / math.sqrt(points), rel=0.15)
    series = rng.random(points + 17)
    assert grouped(series).size == MAX_POINTS
    assert grouped(series).sum() == pytest.approx(series.sum(), rel=1e-12)


@pytest.mark.parametrize(("points", "known"), [(1, False), (MIN_POINTS - 1, False), (MIN_POINTS, True)])
def test_few_points_have_a_value_and_no_bounds(points: int, known: bool) -> None:
    interval = ratio_interval(np.arange(1.0, points + 1), np.ones(points))
    assert interval.value == (points + 1) / 2
    assert (interval.low is not None) == (interval.high is not None) == known


def test_a_constant_series_is_certain() -> None:
    interval = ratio_interval(np.full(50, 64.0), np.full(50, 0.5))
    assert (interval.low, interval.value, interval.high) == (128.0, 128.0, 128.0)


def test_time_in_one_step_alone_tells_no_bounds() -> None:
    denominator = np.zeros(20)
    denominator[3] = 1.0  # most resamples of 20 draw it, some do not
    interval = ratio_interval(np.ones(20), denominator)
    assert (interval.value, interval.low, interval.high) == (20.0, None, None)


SERIES_OF_ANY = hnp.arrays(np.float64, st.integers(MIN_POINTS, 60), elements=st.floats(0.5, 2.0))


@settings(max_examples=30, deadline=None)
@given(series=SERIES_OF_ANY, top=st.integers(-20, 20), bottom=st.integers(-20, 20))
def test_units_scale_the_interval_and_nothing_else(series: Floats, top: int, bottom: int) -> None:
    time = series[::-1].copy()
    one, other = ratio_interval(series, time), ratio_interval(series * 2.0**top, time * 2.0**bottom)
    scale = 2.0 ** (top - bottom)  # powers of two are exact, so the same resamples are drawn
    for bound in ("low", "value", "high"):
        assert getattr(other, bound) == pytest.approx(scale * getattr(one, bound), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(series=SERIES_OF_ANY)
def test_the_value_lies_within_its_bounds_and_the_same_seed_gives_the_same(series: Floats) -> None:
    interval = ratio_interval(series, np.ones_like(series))
    assert interval.low is not None
    assert interval.high is not None
    assert series.min() <= interval.low + 1e-9
    assert interval.low <= interval.value <= interval.high <= series.max() + 1e-9
    assert interval == ratio_interval(series, np.ones_like(series))
