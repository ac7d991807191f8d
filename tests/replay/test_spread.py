"""Intervals of ratios of replays cover the truth as often as they say, on steps whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.replay.windows import window

from allpull.analyse.statistics import ratio_interval
from allpull.replay.engine import replay
from allpull.replay.spread import Resampled, as_often, ratio, resample
from allpull.replay.useful import useful_s
from allpull.replay.whatif.network import without_transfer

pytestmark = pytest.mark.slow

STEPS = 60
MEAN, SD, WIRE, WIRE_SD = 0.050, 0.006, 0.020, 0.004
SLOWEST = MEAN + SD / math.sqrt(math.pi)  # E max of two independent N(μ, σ) (Clark 1961, Operations Research 9)
ORDINARY = np.zeros(STEPS, dtype=np.bool_)


def autoregressive(
    rng: np.random.Generator, columns: int, mean: float, sd: float, *, steps: int = STEPS, kept: float = 0.6
) -> NDArray[np.float64]:
    """Stationary Gaussian AR(1) series of autocorrelation ``kept``, (steps, columns)."""
    series = np.empty((steps, columns))
    series[0] = rng.normal(size=columns)
    for step in range(1, steps):
        series[step] = kept * series[step - 1] + math.sqrt(1 - kept**2) * rng.normal(size=columns)
    return mean + sd * series


def covered(found: Resampled, truth: float) -> bool:
    shown = found.interval(most=1.0)
    assert shown.low is not None
    assert shown.high is not None
    return shown.low <= truth <= shown.high


def coverage(of: Callable[[np.random.Generator], Resampled], truth: float, trials: int = 200) -> float:
    return sum(covered(of(np.random.default_rng(trial)), truth) for trial in range(trials)) / trials


@pytest.mark.parametrize(("steps", "kept"), [(20, 0.0), (20, 0.6), (60, 0.0), (60, 0.6), (100, 0.8)])
def test_transfer_efficiency_is_covered(steps: int, kept: float) -> None:
    def transfer(rng: np.random.Generator) -> Resampled:
        backward = autoregressive(rng, 2, MEAN, SD, steps=steps, kept=kept)
        wire = autoregressive(rng, 1, WIRE, WIRE_SD, steps=steps, kept=kept)
        one = window(2, steps, backward=backward, bucket_s=wire, recorded_s=0.0)
        return ratio(replay(without_transfer(one)).step_s, replay(one).step_s, one.odd)

    assert 0.88 <= coverage(transfer, SLOWEST / (SLOWEST + WIRE)) <= 0.99


def test_parallel_efficiency_is_covered() -> None:
    def parallel(rng: np.random.Generator) -> Resampled:
        one = window(2, STEPS, backward=autoregressive(rng, 2, MEAN, SD), recorded_s=0.0)
        return ratio(useful_s(one).mean(axis=1), replay(one).step_s, one.odd)

    assert 0.88 <= coverage(parallel, MEAN / SLOWEST) <= 0.99


def test_the_interval_that_show_gives_covers_as_well() -> None:
    hits, truth = 0, SLOWEST / (SLOWEST + WIRE)
    for trial in range(200):
        rng = np.random.default_rng(trial)
        slowest = autoregressive(rng, 2, MEAN, SD).max(axis=1)
        shown = ratio_interval(slowest, slowest + autoregressive(rng, 1, WIRE, WIRE_SD)[:, 0])
        assert shown.low is not None
        assert shown.high is not None
        hits += shown.low <= truth <= shown.high
    assert 0.88 <= hits / 200 <= 0.99


def test_independent_steps_have_the_textbook_width() -> None:
    widths = []
    for seed in range(30):
        series = 50 + np.random.default_rng(seed).normal(size=200)
        shown = ratio(series, np.ones(200), np.zeros(200, dtype=np.bool_)).interval()
        assert shown.low is not None
        assert shown.high is not None
        widths.append((shown.high - shown.low) / series.std(ddof=1))
    assert np.mean(widths) == pytest.approx(2 * 1.972 / math.sqrt(200), rel=0.15)  # 1.972: t with 199 degrees


def test_what_both_replays_share_goes_out_of_their_ratio() -> None:
    """Steps that vary threefold, of which exactly half is lost each time: the ratio is sure, its parts are not."""
    lost = np.random.default_rng(0).uniform(0.5, 1.5, STEPS)
    shown = ratio(lost, 2 * lost, ORDINARY).interval()
    assert (shown.low, shown.high) == pytest.approx((0.5, 0.5), abs=1e-12)
    alone = ratio(lost, np.full(STEPS, 2.0), ORDINARY).interval()
    assert alone.low is not None
    assert alone.low < 0.49


def test_the_slowest_of_many_equal_ranks_is_covered_and_plain_percentiles_lose_it() -> None:
    """Over 40 steps one of 64 equal ranks comes out slowest by chance, and in a resample by twice the chance."""
    truths, found = [], []
    for trial in range(100):
        work_s = np.random.default_rng(trial).normal(0.050, 0.006, (40, 64))
        odd = np.zeros(40, dtype=np.bool_)
        slowest = work_s[:, work_s.sum(axis=0).argmax()]
        moves = work_s.mean(axis=1) - slowest * work_s.mean() / slowest.mean()
        found.append(resample(work_s, odd, lambda sums: sums.mean(axis=-1) / sums.max(axis=-1), moves=moves))
        truths.append(found[-1].value)
    truth = float(np.mean(truths))
    plain = [np.quantile(one.resampled, [0.025, 0.975]) for one in found if one.resampled is not None]
    assert np.mean([low <= truth <= high for low, high in plain]) < 0.6
    assert np.mean([covered(one, truth) for one in found]) >= 0.88


def test_odd_steps_stay_as_many_in_every_resample() -> None:
    """Three evaluations in 60 steps: resample among all steps there would be none to seven."""
    times, odd = np.full(STEPS, 0.1), np.arange(STEPS) % 20 == 0
    times[odd] = 1.0
    series = np.stack([times, odd.astype(np.float64)], axis=1)
    kept = resample(series, odd, lambda sums: sums[..., 1], moves=times)
    assert kept.resampled is not None
    assert (kept.resampled == 3).all()
    mixed = resample(series, ORDINARY, lambda sums: sums[..., 1], moves=times)
    assert mixed.resampled is not None
    assert mixed.resampled.std() > 1


def test_rare_steps_are_covered_wherever_the_window_begins() -> None:
    """1.5 s every 8 steps of 0.2: a share of 1.5/(1.5 + 1.6). Windows of 12 to 31 steps hold one more or less."""
    missed = []
    for trial in range(300):
        rng = np.random.default_rng(trial)
        steps, first = int(rng.integers(12, 32)), int(rng.integers(8))
        odd = np.arange(steps) % 8 == first
        scored_s = np.where(odd, 1.5 + rng.normal(0, 0.002, steps), 0.0)
        found = ratio(scored_s, scored_s + 0.2 + rng.normal(0, 0.001, steps), odd)
        if not covered(found, 1.5 / 3.1):
            missed.append((steps, first))
    assert len(missed) <= 0.08 * 300


def test_whole_periods_of_three_events_are_no_matter_of_chance() -> None:
    def width(steps: int) -> float:
        odd = np.arange(steps) % 8 == 7
        shown = ratio(np.where(odd, 1.5, 0.0), np.where(odd, 1.7, 0.2), odd).interval()
        assert shown.low is not None
        assert shown.high is not None
        return shown.high - shown.low

    assert [width(steps) < 1e-9 for steps in (16, 24, 25, 32, 35)] == [False, True, False, True, False]
    assert width(16) > width(35) > width(25) > 0.01


def test_each_kind_of_odd_steps_is_resampled_by_itself() -> None:
    """Nine pauses of 200 ms, once in 28 steps, and a first batch that costs nothing more."""
    pauses, first = np.arange(245) % 28 == 15, np.arange(245) == 120
    lost_s = np.where(pauses, 0.2, 0.0)
    apart = ratio(lost_s + 0.023, np.full(245, 0.023), pauses + 2 * first).interval()
    mixed = ratio(lost_s + 0.023, np.full(245, 0.023), pauses | first).interval()
    assert apart.low is not None
    assert mixed.low is not None
    assert apart.value - apart.low < 0.06 * (apart.value - 1) < 0.15 * (apart.value - 1) < mixed.value - mixed.low
    assert apart.low < 1 + 0.2 / 28 / 0.023, "what a long run loses"


def test_a_state_that_lasts_is_no_event() -> None:
    since = np.arange(60) >= 31
    assert as_often(since)
    assert not as_often(np.arange(60) == 31)
    assert as_often(ORDINARY)
    assert as_often(~ORDINARY)


def test_two_windows_make_a_ratio_less_sure_than_one() -> None:
    rng = np.random.default_rng(3)
    one, other = (ratio(rng.normal(1, 0.1, 100), np.ones(100), np.zeros(100, dtype=np.bool_)) for _ in range(2))
    both = one.product(other).times(2.0)
    assert both.value == pytest.approx(2 * one.value * other.value)
    assert both.resampled is not None
    assert one.resampled is not None
    assert other.resampled is not None
    spread = math.hypot(one.resampled.std(), other.resampled.std())
    assert both.resampled.std() / both.value == pytest.approx(spread, rel=0.1)


def test_few_steps_give_no_bounds_and_no_bounds_multiply_to_none() -> None:
    few = ratio(np.arange(1.0, 8.0), np.ones(7), np.zeros(7, dtype=np.bool_))
    assert (few.interval().low, few.interval().high) == (None, None)
    enough = ratio(np.arange(1.0, 61.0), np.ones(STEPS), ORDINARY)
    assert enough.product(few).interval().low is None
    assert enough.product(few).value == pytest.approx(4 * 30.5)


def test_long_windows_are_summed_in_groups_which_changes_no_ratio() -> None:
    rng = np.random.default_rng(4)
    top, bottom = rng.normal(1, 0.1, 10_000), rng.normal(2, 0.1, 10_000)
    odd = np.arange(10_000) % 1000 == 999
    shown = ratio(top, bottom, odd)
    assert shown.value == pytest.approx(top.sum() / bottom.sum(), rel=1e-12)
    assert shown.resampled is not None
    assert shown.resampled.std() == pytest.approx(math.hypot(0.1, 0.05) / 2 / 100, rel=0.15)
