"""The facts of the lab of gradient descent, against the formulas and a least squares solution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.labs import line
from allpull.labs.line import contours, descend, gradient, loss, optimum, samples, shown


@pytest.fixture(scope="module")
def points():
    return samples(1000, seed=0)


def test_the_loss_ends_near_the_variance_of_the_noise(points):
    path = descend(points, batch=1000, epochs=150, rate=0.5, seed=0)
    assert float(loss(points, *path[-1])) == pytest.approx(1 / 12, rel=0.06)  # 1,000 squares of uniform numbers
    assert path[-1] == pytest.approx(optimum(points), abs=1e-5)


def test_a_full_batch_rights_the_offset_at_once_and_the_slope_by_a_twelfth_each_time(points):
    slope, offset = optimum(points)
    path = descend(points, batch=1000, epochs=30, rate=0.5, seed=0)
    assert path[1, 1] == pytest.approx(offset, abs=1e-9)
    errors = path[:, 0] - slope
    assert 1 - errors[2:] / errors[1:-1] == pytest.approx(1 / 12, rel=1e-4)


def test_an_epoch_of_small_batches_ends_with_the_remainder(points):
    path = descend(points, batch=300, epochs=2, rate=0.5, seed=0)
    assert path.shape == (2 * 4 + 1, 2)


@given(st.floats(-3, 5), st.floats(-2, 2))
@settings(max_examples=50, deadline=None)
def test_loss_and_gradient_are_those_of_their_definition(slope, offset):
    points = samples(57, seed=3)
    left = slope * points.x + offset - points.y
    assert float(loss(points, slope, offset)) == pytest.approx(np.mean(left**2), abs=1e-9)
    step = 1e-6
    by_slope = (loss(points, slope + step, offset) - loss(points, slope - step, offset)) / (2 * step)
    by_offset = (loss(points, slope, offset + step) - loss(points, slope, offset - step)) / (2 * step)
    assert gradient(points, np.arange(57), slope, offset) == pytest.approx((by_slope, by_offset), abs=1e-6)


def test_contours_lie_at_their_level(points):
    levels = np.array([0.01, 0.3])
    least = float(loss(points, *optimum(points)))
    for level, curve in zip(levels, contours(points, levels), strict=True):
        assert loss(points, curve[:, 0], curve[:, 1]) - least == pytest.approx(level, rel=1e-9)


def test_every_epoch_has_each_sample_once():
    assert sorted(line.order(100, 0, 3)) == list(range(100))
    assert list(line.order(100, 0, 3)) != list(line.order(100, 0, 4))


@given(st.integers(0, 2_000_000))
@settings(deadline=None)
def test_a_page_shows_the_first_and_the_last_position_and_few_between(updates):
    places = shown(updates)
    assert places[0] == 0
    assert places[-1] == updates
    assert places.size <= 501
    assert (np.diff(places) > 0).all()
