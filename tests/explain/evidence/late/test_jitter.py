"""The jitter of equal ranks is measured in spite of the rank that is late, and delays are told from unequal work."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.explain.evidence.late.jitter import expected_largest, jitter


@pytest.mark.parametrize("ranks", [4, 8, 64, 1024])
def test_the_expected_largest_is_the_mean_of_the_largest(ranks: int) -> None:
    drawn = np.random.default_rng(ranks).standard_normal((4000, ranks)).max(axis=1)
    assert expected_largest(ranks) == pytest.approx(float(drawn.mean()), rel=0.02)


def test_a_late_rank_in_each_step_does_not_enlarge_the_jitter() -> None:
    rng = np.random.default_rng(1)
    deviations = rng.normal(0.0, 0.001, (100, 64))
    deviations[np.arange(100), rng.integers(64, size=100)] += 0.05
    assert jitter(deviations).sd_s == pytest.approx(0.001, rel=0.05)


@pytest.mark.parametrize("ranks", [3, 4, 8, 64])
def test_delays_have_a_lower_end_and_unequal_work_has_none(ranks: int) -> None:
    rng = np.random.default_rng(2)
    delays, work = rng.exponential(0.01, (200, ranks)), rng.normal(0.1, 0.01, (200, ranks))
    assert jitter(delays - np.median(delays, axis=0)).symmetric == pytest.approx(0.0, abs=0.1)
    assert jitter(work - np.median(work, axis=0)).symmetric == pytest.approx(1.0, abs=0.1)


def test_few_deviations_and_two_ranks_do_not_tell_which_it_is() -> None:
    work = np.random.default_rng(2).normal(0.1, 0.01, (400, 4))
    assert jitter(work[:45]).symmetric == 0.0
    assert jitter(work[:, :2]).symmetric == 0.0
