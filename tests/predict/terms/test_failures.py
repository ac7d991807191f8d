"""Failures: Daly's worked values, a job that is simulated minute by minute, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.predict.terms.failures import FailureRate, chance, expected_s, mean_between_s, optimal_interval_s


def test_dalys_figures() -> None:
    """Daly 2006, figures 3 to 5: 117, 57 and 9.1 minutes."""
    intervals = optimal_interval_s(5.0, np.array([24 * 60, 6 * 60, 15.0]))
    assert intervals == pytest.approx([117, 57, 9.1], rel=0.01)


def test_youngs_interval_is_the_limit_of_short_checkpoints() -> None:
    assert optimal_interval_s(0.01, 1e6) == pytest.approx(np.sqrt(2 * 0.01 * 1e6), rel=1e-3)


def test_writing_longer_than_twice_the_mean_time_between_failures() -> None:
    assert optimal_interval_s(30.0, 10.0) == 10.0


def test_published_anchor() -> None:
    """419 interruptions of 16,384 GPUs in 54 days: one every 3.1 hours; every 49 hours on 1,024."""
    draws = FailureRate().per_rank_s(np.random.default_rng(0), 4000)
    assert np.median(mean_between_s(16_384, draws)) / 3600 == pytest.approx(3.09, rel=0.01)
    assert np.median(mean_between_s(1024, draws)) / 3600 == pytest.approx(49, rel=0.02)
    low, high = np.quantile(draws, (0.05, 0.95)) / np.median(draws)
    assert (low, high) == (pytest.approx(0.92, abs=0.01), pytest.approx(1.08, abs=0.01))  # 1.645 / sqrt(419)


def simulated_s(work_s: float, mtbf_s: float, interval_s: float, write_s: float, restart_s: float) -> float:
    """One job: failures at random moments throw it back to its last checkpoint; also while it starts again."""
    rng = np.random.default_rng(int(work_s))
    totals = []
    for _ in range(2000):
        total, saved = 0.0, 0.0
        while saved < work_s:
            length = min(interval_s + write_s, work_s - saved + write_s)
            failure = rng.exponential(mtbf_s)
            if failure >= length:
                total, saved = total + length, saved + interval_s
                continue
            total += failure
            while (failure := rng.exponential(mtbf_s)) < restart_s:
                total += failure
            total += restart_s
        totals.append(total)
    return float(np.mean(totals))


def test_expected_time_is_that_of_simulated_jobs() -> None:
    for mtbf, restart in ((600.0, 0.0), (300.0, 5.0)):
        simulated = simulated_s(2000, mtbf, 100.0, 10.0, restart)
        expected = float(expected_s(2000.0, mtbf, interval_s=100.0, write_s=10.0, restart_s=restart))
        assert expected == pytest.approx(simulated, rel=0.03)


@given(write=st.floats(0.1, 100), between=st.floats(1000, 1e7))
@settings(max_examples=60, deadline=None)
def test_the_interval_is_the_best(write: float, between: float) -> None:
    best = float(optimal_interval_s(write, between))
    work = 1e3 * best

    def time_s(interval: float) -> float:
        return float(expected_s(work, between, interval_s=interval, write_s=write))

    assert time_s(best) <= min(time_s(best * factor) for factor in (0.5, 0.8, 1.25, 2.0))


@given(work=st.floats(1, 1e7), between=st.floats(1, 1e9), interval=st.floats(1, 1e5), restart=st.floats(0, 1e3))
@settings(max_examples=100, deadline=None)
def test_failures_never_make_a_job_shorter(work: float, between: float, interval: float, restart: float) -> None:
    assert float(expected_s(work, between, interval_s=interval, restart_s=restart)) >= work * (1 - 1e-12)


def test_without_failures_only_writing_costs() -> None:
    assert float(expected_s(1000.0, float("inf"), interval_s=100.0, write_s=5.0)) == 1050.0
    assert float(expected_s(90.0, float("inf"), interval_s=100.0, write_s=5.0)) == 90.0


def test_a_quarter_of_an_hour_on_16384_gpus() -> None:
    assert float(chance(15 * 60, 3.09 * 3600)) == pytest.approx(0.078, abs=0.001)


@pytest.mark.parametrize(("interruptions", "hours"), [(0, 10), (-1, 10), (3, 0), (float("nan"), 5), (3, float("inf"))])
def test_no_rate(interruptions: float, hours: float) -> None:
    with pytest.raises(BadInput):
        FailureRate(interruptions=interruptions, rank_hours=hours).per_rank_s(np.random.default_rng(0), 4)
