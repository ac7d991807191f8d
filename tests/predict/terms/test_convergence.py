"""Epochs against the batch: MLPerf's reference points, exact curves, bounds where points cannot tell, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.predict.terms.convergence import FURTHEST, epochs_to_target, fitted
from allpull.published.convergence import reference_points

DRAWS = 200


def mlperf(largest: float = float("inf")) -> list[tuple[float, float]]:
    """The latest reference points, up to a global batch."""
    points = ((float(one.global_batch), one.mean_epochs) for one in reference_points())
    return [point for point in points if point[0] <= largest]


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_reference_points_give_the_published_fit() -> None:
    first, critical = fitted(mlperf(), rng(), 1).fit
    assert first == pytest.approx(34.6, rel=0.005)
    assert critical == pytest.approx(46_600, rel=0.02)


def test_leaving_one_reference_point_out_errs_by_four_percent() -> None:
    points = mlperf()
    errors = [
        abs(fitted([*points[:k], *points[k + 1 :]], rng(), 1).fitted_epochs(batch) / epochs - 1)
        for k, (batch, epochs) in enumerate(points)
    ]
    assert np.mean(errors) == pytest.approx(0.043, abs=0.005)
    assert max(errors) < 0.08


def test_small_batches_alone_miss_large_ones() -> None:
    """Why nothing is followed further than by two: MLPerf's batches of up to 13,056 say nothing good of 65,536."""
    fit = fitted(mlperf(13_056), rng(), 1)
    beyond = [(batch, epochs) for batch, epochs in mlperf() if batch > FURTHEST * 13_056]
    assert all(fit.fitted_epochs(batch) / epochs > 1.09 for batch, epochs in beyond)
    answer = epochs_to_target(mlperf(13_056), 65_536, rng(), DRAWS)
    assert answer.draws is None
    assert answer.high is None
    assert answer.low is not None
    assert answer.low < 84.5
    assert "65,536" in str(answer.reason)


def test_the_interval_holds_nine_tenths_of_reference_points_left_out() -> None:
    points = mlperf()
    held = 0
    for k, (batch, epochs) in enumerate(points):
        draws = epochs_to_target([*points[:k], *points[k + 1 :]], batch, rng(), DRAWS).draws
        assert draws is not None
        low, high = np.quantile(draws, (0.05, 0.95))
        held += bool(low <= epochs <= high)
    assert held >= 9


@given(
    first=st.floats(1, 500),
    critical=st.floats(100, 1e6),
    batches=st.lists(st.integers(16, 100_000), min_size=2, max_size=8, unique=True),
)
@settings(max_examples=15, deadline=None)
def test_points_on_a_curve_are_met(first: float, critical: float, batches: list[int]) -> None:
    points = [(float(batch), first * (1 + batch / critical)) for batch in batches]
    fit = fitted(points, rng(), 8)
    assert all(fit.fitted_epochs(batch) == pytest.approx(epochs, rel=0.01) for batch, epochs in points)
    assert (fit.first_epochs > 0).all()
    assert (fit.critical_batch > 0).all()


@given(scale=st.floats(0.01, 100))
@settings(max_examples=8, deadline=None)
def test_epochs_scale(scale: float) -> None:
    known = fitted(mlperf(), rng(), 16)
    scaled = fitted([(batch, scale * epochs) for batch, epochs in mlperf()], rng(), 16)
    assert np.allclose(scaled.epochs(9000), scale * known.epochs(9000))


def test_epochs_that_fall_with_the_batch_are_taken_as_constant() -> None:
    fit = fitted([(100, 20.0), (200, 19.0), (400, 18.5)], rng(), 8)
    assert np.isinf(fit.fit[1])
    assert fit.fitted_epochs(800) == pytest.approx(19.16, abs=0.01)


def test_one_batch_gives_bounds_elsewhere() -> None:
    points = [(256.0, 40.0), (256.0, 42.0)]
    assert epochs_to_target(points, 256, rng(), DRAWS).draws is not None
    double = epochs_to_target(points, 512, rng(), DRAWS)
    assert double.draws is None
    assert double.low is not None
    assert double.high is not None
    assert double.low < 41 < 82 < double.high
    assert epochs_to_target(points, 1024, rng(), DRAWS).high is None
    half = epochs_to_target(points, 128, rng(), DRAWS)
    assert half.low is not None
    assert half.high is not None
    assert half.low < 20.5 < 41 < half.high


def test_few_epochs_are_known_to_half_of_one_only() -> None:
    points = [(64.0, 3.0), (128.0, 3.0)]
    exact = epochs_to_target(points, 128, rng(), DRAWS).draws
    counted = epochs_to_target(points, 128, rng(), DRAWS, resolution=1.0).draws
    assert exact is not None
    assert counted is not None
    assert np.ptp(np.quantile(counted, (0.05, 0.95))) > 1.3 * np.ptp(np.quantile(exact, (0.05, 0.95)))
    assert np.quantile(counted, 0.95) > 3.4


def test_far_smaller_batches_are_bounded_from_above() -> None:
    answer = epochs_to_target(mlperf(), 400, rng(), DRAWS)
    assert (answer.draws, answer.low) == (None, None)
    assert answer.high == pytest.approx(39, abs=1.5)


@pytest.mark.parametrize("points", [[], [(0, 4.0), (5, 5.0)], [(10, -4.0), (5, 5.0)], [(10, float("nan")), (5, 5.0)]])
def test_what_is_no_point_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(BadInput):
        epochs_to_target(points, 100, rng(), DRAWS)


def test_one_batch_is_no_fit() -> None:
    with pytest.raises(BadInput, match="one global batch"):
        fitted([(256, 40.0), (256, 41.0)], rng(), DRAWS)


@pytest.mark.parametrize("batch", [0, -1, float("inf"), float("nan")])
def test_a_batch_is_a_positive_number(batch: float) -> None:
    with pytest.raises(BadInput):
        epochs_to_target(mlperf(), batch, rng(), DRAWS)
