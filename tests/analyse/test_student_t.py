"""Student's t for few runs: printed tables, closed forms, and what must always hold."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.analyse.statistics import student_t
from allpull.analyse.student_t import MANY, beyond, quantile

FREEDOM = st.floats(1, 5000)


@pytest.mark.parametrize(
    ("probability", "freedom", "printed"),
    [
        # Fisher & Yates (1963), Statistical Tables, table III
        (0.975, 1, 12.706),
        (0.995, 1, 63.657),
        (0.995, 2, 9.925),
        (0.995, 3, 5.841),
        (0.995, 4, 4.604),
        (0.975, 10, 2.228),
        (0.9995, 10, 4.587),
        (0.995, 30, 2.750),
        (0.995, 120, 2.617),
    ],
)
def test_quantiles_are_those_of_printed_tables(probability: float, freedom: float, printed: float) -> None:
    assert quantile(probability, freedom) == pytest.approx(printed, abs=6e-4)


@given(probability=st.floats(0.501, 0.9995))
def test_one_and_two_degrees_have_closed_forms(probability: float) -> None:
    assert quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-6)
    spread = 2 * probability - 1
    assert quantile(probability, 2) == pytest.approx(spread * math.sqrt(2 / (1 - spread**2)), rel=1e-6)


@given(probability=st.floats(0.501, 0.9995), freedom=FREEDOM)
def test_a_quantile_leaves_what_it_says_beyond_it(probability: float, freedom: float) -> None:
    assert beyond(quantile(probability, freedom), freedom) == pytest.approx(2 * (1 - probability), rel=1e-6)
    assert quantile(1 - probability, freedom) == pytest.approx(-quantile(probability, freedom), rel=1e-6)


@given(freedom=FREEDOM, more=st.floats(1.01, 10))
def test_more_freedom_is_never_less_sure(freedom: float, more: float) -> None:
    assert quantile(0.995, freedom) > quantile(0.995, freedom * more)


def test_it_meets_the_normal_one_and_the_approximation_that_many_steps_use() -> None:
    assert quantile(0.995, math.inf) == NormalDist().inv_cdf(0.995)
    assert quantile(0.975, MANY) == pytest.approx(quantile(0.975, MANY - 1e-6), rel=1e-8)  # both sides of the seam
    for freedom in (5, 8, 20, 400):
        assert student_t(freedom) == pytest.approx(quantile(0.975, freedom), rel=1.5e-3)
