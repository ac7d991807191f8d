"""Ranks that are delayed one at a time are told from ranks that all vary, also by few steps."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.explain.evidence.late.single_delays import are_single

STEPS = 35


@pytest.mark.parametrize("ranks", [4, 8])
def test_few_steps_of_ranks_that_all_vary_are_not_delayed_one_at_a_time(ranks: int) -> None:
    """Exponential delays, of which the last is twice as far behind as the one before, on average."""
    rng = np.random.default_rng(1)
    assert sum(are_single(rng.exponential(0.02, (STEPS, ranks))) for _ in range(500)) <= 5


@pytest.mark.parametrize("ranks", [4, 8])
def test_few_steps_with_one_delay_each_are(ranks: int) -> None:
    """Delays of 20 ms on one rank at a time, among ranks that vary by 2 ms."""
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(200):
        deviations_s = rng.normal(0.0, 0.002, (STEPS, ranks))
        deviations_s[np.arange(STEPS), rng.integers(ranks, size=STEPS)] += rng.exponential(0.02, STEPS)
        found += are_single(deviations_s)
    assert found >= 190
