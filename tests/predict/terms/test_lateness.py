"""Facts: textbook maxima, a Monte Carlo of the whole job, exact subsets of the measured ranks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from allpull.predict.terms import lateness, tails
from allpull.predict.terms.tails import Floats

DRAWS = 60


def fitted(work: Floats, ranks_per_host: int = 1, seed: int = 0) -> lateness.Lateness:
    rng = np.random.default_rng(seed)
    steps, ranks = work.shape
    resamples = lateness.block_resamples(steps, DRAWS, rng)
    return lateness.fitted(work, np.arange(ranks) // ranks_per_host, resamples, rng)


def middle(late: lateness.Lateness, ranks: int, hosts: int | None = None) -> float:
    return float(np.median(late.seconds(ranks, hosts or ranks)))


@pytest.mark.parametrize(("ranks", "sigmas"), [(16, 1.766), (128, 2.594), (1024, 3.250), (16384, 3.976)])
def test_the_largest_of_normal_values_is_as_far_out_as_the_tables_have_it(ranks: int, sigmas: float) -> None:
    # E[max] by quadrature of the density N φ Φ^(N−1), as in tables of order statistics (Harter 1961)
    table = tails.normal(np.ones(1))
    assert (tails.maximum(table, ranks) @ tails.WEIGHTS)[0] == pytest.approx(sigmas, rel=0.004)


@pytest.mark.parametrize("ranks", [1, 2, 8, 128, 16384])
def test_the_largest_of_exponential_values_is_the_harmonic_number(ranks: int) -> None:
    table = -np.log(tails.EXCEEDED)[None]
    harmonic = (1 / np.arange(1, ranks + 1)).sum()
    assert (tails.maximum(table, ranks) @ tails.WEIGHTS)[0] == pytest.approx(harmonic, rel=0.005)


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.4, 0.8])
def test_the_shape_of_a_tail_is_recovered(shape: float) -> None:
    left = np.random.default_rng(1).random((8, 4000))
    excess = np.sort(np.expm1(-shape * np.log(left)) / shape if shape else -np.log(left), axis=1)
    fitted_shape, scale = tails.pareto(excess)
    assert fitted_shape.mean() == pytest.approx(shape, abs=0.03)
    assert scale.mean() == pytest.approx(1.0, abs=0.03)


def test_sums_of_two_normal_values_are_normal() -> None:
    both = tails.added(tails.normal(np.array([3.0])), tails.normal(np.array([4.0])))
    for ranks in (1, 16, 16384):
        once = tails.maximum(tails.normal(np.array([5.0])), ranks) @ tails.WEIGHTS
        assert (tails.maximum(both, ranks) @ tails.WEIGHTS)[0] == pytest.approx(once[0], rel=0.01, abs=0.02)


def test_median_polish_separates_a_table_that_is_additive() -> None:
    persistent, common = np.array([0.0, 0.05, -0.01]), np.array([0.0, 0.2, -0.1, 0.3, -0.4])
    parts = lateness.polish(1.0 + common[:, None] + persistent)
    assert parts.persistent == pytest.approx(persistent)
    assert parts.common == pytest.approx(common)
    assert parts.transient == pytest.approx(np.zeros((5, 3)), abs=1e-12)
    assert parts.middle == pytest.approx(1.0)


def test_up_to_the_measured_ranks_it_is_the_mean_over_all_subsets_of_them() -> None:
    work = np.random.default_rng(2).exponential(0.03, (12, 5))
    rng = np.random.default_rng(3)
    late = lateness.fitted(work, np.arange(5), np.arange(12)[None], rng)
    for ranks in range(1, 6):
        subsets = [work[:, list(chosen)].max(axis=1).mean() for chosen in combinations(range(5), ranks)]
        assert late.seconds(ranks, ranks)[0] == pytest.approx(np.mean(subsets) - work.mean())


@pytest.mark.parametrize("measured", [2, 4])
def test_exponential_jitter_of_few_ranks_continues_with_the_harmonic_number(measured: int) -> None:
    late = fitted(0.25 + np.random.default_rng(4).exponential(0.03, (400, measured)))
    for ranks in (8, 64):
        expected = 0.03 * ((1 / np.arange(1, ranks + 1)).sum() - 1)
        low, high = np.quantile(late.seconds(ranks, ranks), [0.05, 0.95])
        assert low < expected < high
        assert middle(late, ranks) == pytest.approx(expected, rel=0.15)


def test_a_job_played_step_by_step_with_all_kinds_of_noise_is_within_the_interval() -> None:
    rng = np.random.default_rng(5)
    hosts, per_host, steps = 32, 4, 300
    persistent = rng.normal(0, 0.004, hosts * per_host)

    def job() -> Floats:
        of_host = np.repeat(rng.gamma(2.0, 0.004, (steps, hosts)), per_host, axis=1)
        return np.asarray(
            0.3 + rng.gamma(2.0, 0.02, (steps, 1)) + of_host + persistent + rng.normal(0, 0.004, of_host.shape)
        )

    late = fitted(job()[:, :32], ranks_per_host=per_host)  # 8 of the 32 hosts
    work = job()
    truth = float((work.max(axis=1) - work.mean(axis=1)).mean())
    low, high = np.quantile(late.seconds(hosts * per_host, hosts), [0.05, 0.95])
    assert low < truth < high
    assert middle(late, hosts * per_host, hosts) == pytest.approx(truth, rel=0.1)


def test_what_all_ranks_have_in_common_makes_none_of_them_late() -> None:
    rng = np.random.default_rng(6)
    common = fitted(0.25 + rng.exponential(0.05, (200, 1)) + rng.normal(0, 0.001, (200, 4)))
    assert middle(common, 64) < 0.008


def test_noise_of_a_host_counts_once_per_host() -> None:
    rng = np.random.default_rng(7)
    late = fitted(0.25 + np.repeat(rng.exponential(0.03, (300, 8)), 4, axis=1), ranks_per_host=4)
    expected = 0.03 * ((1 / np.arange(1, 33)).sum() - 1)
    assert middle(late, 128, 32) == pytest.approx(expected, rel=0.12)
    assert middle(late, 128, 128) > middle(late, 128, 32)


def test_a_slow_rank_stays_the_slowest_of_a_larger_job_and_can_be_removed() -> None:
    work = 0.25 + np.random.default_rng(8).normal(0, 0.001, (100, 8))
    work[:, 3] += 0.05
    late = fitted(work)
    assert middle(late, 64) == pytest.approx(0.05 * 7 / 8, rel=0.05)
    assert late.balanced is not None
    assert middle(late.balanced, 64) < 0.01


def test_it_never_decreases_with_ranks_in_any_draw() -> None:
    late = fitted(np.random.default_rng(9).gamma(4.0, 0.01, (80, 3)))
    sizes = [late.seconds(ranks, ranks) for ranks in (1, 2, 3, 4, 8, 64, 1024, 16384)]
    assert (np.diff(sizes, axis=0) >= -1e-9).all()
    assert sizes[0] == pytest.approx(np.zeros(DRAWS), abs=1e-12)


def test_time_scales_with_its_unit() -> None:
    work = np.random.default_rng(10).gamma(4.0, 0.01, (80, 3))
    one, thousand = fitted(work), fitted(work * 1000)
    assert thousand.seconds(64, 64) == pytest.approx(1000 * one.seconds(64, 64), rel=1e-6)


def test_without_any_noise_the_measured_ranks_are_not_late() -> None:
    still = fitted(np.full((50, 8), 0.25))
    assert still.seconds(8, 8) == pytest.approx(np.zeros(DRAWS), abs=1e-12)
    assert middle(still, 1024) < 0.01 * 0.25  # what eight ranks cannot exclude


@pytest.mark.parametrize(("steps", "ranks", "reason"), [(300, 1, "one rank"), (300, 2, "2 ranks"), (20, 4, "80 steps")])
def test_it_says_what_it_cannot_know(steps: int, ranks: int, reason: str) -> None:
    late = fitted(np.random.default_rng(11).gamma(4.0, 0.01, (steps, ranks)))
    assert late.reasons[0].startswith(reason)


def test_a_tail_without_a_mean_counts_with_its_median() -> None:
    cauchy = np.abs(np.random.default_rng(12).standard_cauchy((400, 4))) * 0.001
    late = fitted(0.25 + cauchy)
    assert (late.shape >= 1).any()
    assert np.isfinite(late.seconds(16384, 2048)).all()
    assert any("median" in reason for reason in late.reasons)


def test_the_heaviest_tail_grows_no_faster_than_the_ranks() -> None:
    rng = np.random.default_rng(1)
    values = rng.uniform(size=(50, 100)) ** -4.0  # a Pareto of shape 4, whose maximum grows with the fourth power
    table, shape = tails.fitted(values, rng)
    assert shape.max() == tails.MOST_SHAPE
    few, many = (np.median(tails.median(tails.maximum(table, count))) for count in (1_000, 100_000))
    assert 50 < many / few < 110


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        fitted(np.ones((1, 4)))
