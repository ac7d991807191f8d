"""Gains in order: what is known counts in full, what is an upper bound for what is expected of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.explain.pricing.expected_gain import expected_gain
from allpull.schema.results import Interval

SPEEDUPS = st.floats(1.0, 100.0)


def bound(low: float, value: float) -> Interval:
    return Interval(value=value, low=low, high=value)


@given(SPEEDUPS, SPEEDUPS)
def test_a_bound_counts_for_the_mean_of_what_it_saves_surely_and_at_most(one: float, other: float) -> None:
    low, value = sorted((one, other))
    saved = ((1 - 1 / low) + (1 - 1 / value)) / 2
    assert expected_gain(bound(low, value)) == pytest.approx(1 / (1 - saved))
    assert low <= expected_gain(bound(low, value)) * (1 + 1e-12)
    assert expected_gain(bound(low, value)) <= value * (1 + 1e-12)


@given(SPEEDUPS, SPEEDUPS, st.floats(1.0, 2.0))
def test_a_bound_of_which_more_is_sure_or_possible_counts_for_no_less(one: float, other: float, more: float) -> None:
    low, value = sorted((one, other))
    assert expected_gain(bound(low, value * more)) >= expected_gain(bound(low, value)) * (1 - 1e-12)
    assert expected_gain(bound(min(low * more, value), value)) >= expected_gain(bound(low, value)) * (1 - 1e-12)


def test_an_estimate_counts_in_full_and_what_has_no_price_for_nothing() -> None:
    assert expected_gain(Interval(value=1.4, low=1.1, high=1.9)) == 1.4
    assert expected_gain(Interval(value=1.4, low=None, high=None)) == 1.4
    assert expected_gain(Interval(value=1.4, low=1.4, high=1.4)) == 1.4
    assert expected_gain(None) == 0
    assert expected_gain(bound(0.0, 2.0)) == 2.0
