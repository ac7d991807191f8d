"""Who stands out: never by chance, whatever the noise; always where a rank is slow by more than the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.windows import late, rotating

from allpull.explain.evidence.late.outliers import (
    _late_for_a_while,
    is_correlated,
    outliers,
    regular_pauses,
    without_pauses,
)
from allpull.replay.leave_one_out import beyond_others

SEEDS = st.integers(0, 2**32 - 1)
NOISES = {
    "gaussian": lambda rng, shape: rng.normal(0.1, 0.01, shape),
    "exponential": lambda rng, shape: 0.1 + rng.exponential(0.01, shape),
    "heavy": lambda rng, shape: 0.1 + 0.002 * rng.pareto(1.5, shape),
    "stalls": lambda rng, shape: 0.1 + 0.5 * (rng.random(shape) < 0.01),
}


def noisy(kind: str, seed: int, steps: int = 50, ranks: int = 8) -> np.ndarray:
    return NOISES[kind](np.random.default_rng(seed), (steps, ranks))


@pytest.mark.parametrize("kind", NOISES)
def test_equal_ranks_do_not_stand_out(kind: str) -> None:
    out = [seed for seed in range(60) if outliers(noisy(kind, seed)).ranks]
    assert not out


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_slow_rank_stands_out_with_its_size(kind: str, ranks: int) -> None:
    for seed in range(5):
        (one,) = outliers(noisy(kind, seed, ranks=ranks) + late(ranks, 50, rank=1, by_s=0.04)).ranks
        assert one.rank == 1
        assert one.size.value == pytest.approx(0.04, rel=0.25)
        assert one.steady


def test_one_long_stall_makes_nobody_stand_out() -> None:
    work = noisy("gaussian", 0)
    work[20, 3] += 5.0
    assert not outliers(work).ranks


def test_a_stall_does_not_hide_a_slow_rank() -> None:
    work = noisy("gaussian", 0) + late(8, 50, rank=5, by_s=0.02)
    work[20, 3] += 5.0
    (one,) = outliers(work).ranks
    assert (one.rank, round(one.size.value, 2)) == (5, 0.02)


def test_whoever_is_last_in_turn_does_not_stand_out() -> None:
    assert not outliers(0.1 + rotating(8, 48, by_s=0.04)).ranks
    assert not outliers(noisy("gaussian", 1, 48) + rotating(8, 48, by_s=0.04)).ranks


def test_several_slow_ranks_are_all_named_the_slowest_first() -> None:
    work = noisy("gaussian", 2) + late(8, 50, rank=6, by_s=0.03) + late(8, 50, rank=2, by_s=0.08)
    assert [one.rank for one in outliers(work).ranks] == [2, 6]


def test_a_rank_that_varies_more_than_the_others_is_named_and_not_called_late() -> None:
    rng = np.random.default_rng(3)
    work = noisy("gaussian", 3, steps=200)
    work[:, 4] += rng.normal(0, 0.08, 200)
    (one,) = outliers(work).ranks
    assert (one.rank, one.steady) == (4, False)


def test_half_of_the_ranks_at_most_are_slower_than_the_rest() -> None:
    work = noisy("gaussian", 4, ranks=4) + np.array([0.0, 0.0, 0.05, 0.05])
    assert sorted(one.rank for one in outliers(work).ranks) == [2, 3]


def test_few_steps_and_single_ranks_tell_nothing() -> None:
    assert outliers(np.ones((7, 4))).floor_s == np.inf
    assert outliers(np.ones((50, 1))).floor_s == np.inf
    assert outliers(np.ones((50, 4))).floor_s == 0.0


@given(SEEDS, st.permutations(range(6)))
@settings(max_examples=20)
def test_relabelling_ranks_relabels_who_stands_out(seed: int, order: list[int]) -> None:
    work = noisy("exponential", seed, ranks=6) + late(6, 50, rank=2, by_s=0.05)
    names = [order.index(one.rank) for one in outliers(work).ranks]
    assert names == [one.rank for one in outliers(work[:, order]).ranks]


@given(SEEDS, st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_sizes_go_with_the_unit_of_time(seed: int, factor: float) -> None:
    work = noisy("gaussian", seed) + late(8, 50, rank=2, by_s=0.05)
    one, other = outliers(work), outliers(work * factor)
    assert other.floor_s == pytest.approx(one.floor_s * factor, rel=1e-6)
    assert [each.size.value for each in other.ranks] == pytest.approx([each.size.value * factor for each in one.ranks])


def test_the_floor_is_that_of_the_run_without_those_who_stand_out() -> None:
    quiet = noisy("gaussian", 5)
    loud = outliers(quiet + late(8, 50, rank=0, by_s=1.0))
    assert loud.floor_s == pytest.approx(outliers(quiet).floor_s, rel=0.3)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_regular_pauses_are_taken_out_and_nothing_else(ranks: int) -> None:
    """What all ranks take longer for in these steps stays, and so does a rank that is always late."""
    work_s = np.random.default_rng(1).normal(0.1, 0.001, (100, ranks))
    work_s[::10] += 0.05
    work_s[:, 1] += 0.02
    paused_s = work_s + late(ranks, 100, rank=0, by_s=0.2, every=10)
    assert without_pauses(paused_s) == pytest.approx(work_s, abs=0.006)
    assert without_pauses(work_s) == pytest.approx(work_s)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_rank_that_is_always_late_beside_one_that_pauses(ranks: int) -> None:
    work_s = np.random.default_rng(2).normal(0.1, 0.001, (100, ranks))
    both_s = work_s + late(ranks, 100, rank=0, by_s=0.2, every=10) + late(ranks, 100, rank=1, by_s=0.02)
    found = {one.rank: one for one in outliers(both_s).ranks}
    assert sorted(found) == [0, 1]
    assert found[0].every == 10
    assert found[0].size.value == pytest.approx(0.02, rel=0.11)
    assert found[1].steady
    assert found[1].size.value == pytest.approx(0.02, rel=0.05)


FEW_STEPS = (8, 10, 15, 20, 25)


def in_short(values: tuple[Any, ...], *short: Any) -> list[Any]:
    """``values`` of a test that draws hundreds of runs for each: all but ``short`` are with the long tests."""
    long = [one for one in values if one not in short]
    return [*short, *(pytest.param(*np.atleast_1d(one).tolist(), marks=pytest.mark.slow) for one in long)]


@pytest.mark.parametrize("steps", FEW_STEPS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_rank_that_is_half_as_slow_again_stands_out_of_few_ranks_and_few_steps(ranks: int, steps: int) -> None:
    """Noise of 1 %: at 8 steps as at 25, of two ranks as of four, with the size that it has."""
    for seed in range(10):
        work = np.random.default_rng(seed).normal(0.1, 0.001, (steps, ranks)) + late(ranks, steps, rank=1, by_s=0.05)
        one, *chance = outliers(work).ranks
        assert (one.rank, one.steady) == (1, True)
        assert one.size.value == pytest.approx(0.05, rel=0.05)
        assert all(other.size.value < 0.001 for other in chance)


@pytest.mark.parametrize(("steps", "deviations"), [(10, 12), (15, 8), (20, 5), (25, 3)])
def test_the_power_at_two_ranks_is_what_the_docstring_says(steps: int, deviations: float) -> None:
    """In 19 of 20 runs a rank is found that is late by so many standard deviations of a step."""
    slow = late(2, steps, rank=0, by_s=deviations)
    runs = [np.random.default_rng(seed).normal(100, 1, (steps, 2)) + slow for seed in range(100)]
    assert sum(bool(outliers(work).ranks) for work in runs) >= 0.93 * len(runs)


@pytest.mark.parametrize("steps", in_short(FEW_STEPS, 10))
@pytest.mark.parametrize("kind", NOISES)
def test_of_few_steps_equal_ranks_do_not_stand_out(kind: str, steps: int) -> None:
    for ranks in (2, 3, 4):
        assert not [seed for seed in range(60) if outliers(noisy(kind, seed, steps, ranks)).ranks]


def following(seed: int, steps: int, ranks: int, rho: float) -> np.ndarray:
    """Noise that follows itself: an autoregressive series of first order for each rank."""
    drawn = np.random.default_rng(seed).standard_normal((steps, ranks))
    for step in range(1, steps):
        drawn[step] = rho * drawn[step - 1] + np.sqrt(1 - rho**2) * drawn[step]
    return 10 + drawn


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("steps", [10, 20])
def test_noise_that_lasts_for_some_steps_is_seldom_taken_for_a_slow_rank(ranks: int, steps: int) -> None:
    out = sum(bool(outliers(following(seed, steps, ranks, 0.6)).ranks) for seed in range(150))
    assert out <= 0.05 * 150


def test_of_two_ranks_the_floor_is_that_of_the_noise_and_not_of_the_fault() -> None:
    quiet = noisy("gaussian", 5, 20, 2)
    loud = outliers(quiet + late(2, 20, rank=0, by_s=1.0))
    assert [one.rank for one in loud.ranks] == [0]
    assert loud.floor_s <= 2 * outliers(quiet).floor_s < 0.02


def test_a_stall_in_few_steps_neither_hides_a_slow_rank_nor_makes_one() -> None:
    for ranks in (2, 3, 4):
        work = np.random.default_rng(ranks).normal(0.1, 0.001, (20, ranks))
        work[7, 0] += 5.0
        assert not outliers(work).ranks
        (one,) = outliers(work + late(ranks, 20, rank=1, by_s=0.05)).ranks
        assert one.rank == 1
        assert one.size.value == pytest.approx(0.05, rel=0.2)


@given(SEEDS, st.permutations(range(3)))
@settings(max_examples=20)
def test_relabelling_few_ranks_of_few_steps_relabels_who_stands_out(seed: int, order: list[int]) -> None:
    work = noisy("gaussian", seed, 12, 3) + late(3, 12, rank=2, by_s=0.2)
    names = [order.index(one.rank) for one in outliers(work).ranks]
    assert names == [one.rank for one in outliers(work[:, order]).ranks] == [order.index(2)]


@pytest.mark.parametrize(("steps", "every", "number"), [(90, 20, 4), (60, 10, 6), (400, 100, 4), (200, 8, 25)])
def test_a_rank_that_pauses_in_every_nth_step_stands_out(steps: int, every: int, number: int) -> None:
    """Too few times for shuffled labels to tell it from chance."""
    work = noisy("gaussian", 1, steps, 2)
    work[every // 2 :: every, 1] += 0.3
    (one,) = outliers(work).ranks
    assert one.rank == 1
    assert one.size.value == pytest.approx(0.3 * number / steps, rel=0.2)
    work[3, 1] += 0.4  # an accident among them
    assert [one.rank for one in outliers(work).ranks] == [1]


def test_four_regular_pauses_of_48_are_a_habit_where_no_other_rank_pauses() -> None:
    """Rank 0 does something at the end of each epoch of 12 steps."""
    work = noisy("gaussian", 1, 48, 2)
    work[::12, 0] += 0.5
    (one,) = outliers(work).ranks
    assert (one.rank, one.every) == (0, 12)
    work[[5, 30], 1] += 0.5
    assert not outliers(work).ranks


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_rank_that_pauses_at_random_is_not_regular(ranks: int) -> None:
    """Four to six pauses in 60 steps, all on rank 0: in which steps is what tells."""
    rng = np.random.default_rng(5)
    regular = 0
    for number in (4, 5, 6) * 30:
        work = rng.normal(0.1, 0.001, (60, ranks))
        work[rng.choice(60, number, replace=False), 0] += 0.5
        regular += bool(regular_pauses(work)[1])
    assert regular == 0


@pytest.mark.parametrize("between", [slice(39, None, 20), slice(4, 120, 20), slice(39, 180, 20)])
def test_a_rank_that_pauses_in_every_nth_step_of_a_part_of_them_stands_out(between: slice) -> None:
    """It saves after each evaluation, which begins with the second epoch, or ends before the last one."""
    work = noisy("gaussian", 1, 200, 2)
    work[between, 1] += 0.3
    (one,) = outliers(work).ranks
    assert one.rank == 1
    assert one.size.value == pytest.approx(0.3 * work[between, 1].size / 200, rel=0.2)
    assert one.every == 20
    assert one.size.low is not None
    assert one.size.low > 0.75 * one.size.value, "how often it pauses is no chance"


def test_a_rank_of_heavier_tails_is_late_by_what_it_takes_longer() -> None:
    """Each rank draws from an exponential, rank 1 from one twice as long: its long steps are no accidents."""
    rng = np.random.default_rng(2)
    work = 0.02 + rng.exponential([0.008, 0.016], (220, 2))
    (one,) = outliers(work).ranks
    assert one.rank == 1
    assert one.size.value == pytest.approx(float((work[:, 1] - work[:, 0]).mean()), rel=0.01)


def test_a_rank_that_pauses_and_is_late_in_each_step_has_two_faults() -> None:
    work = noisy("gaussian", 3, 240, 2)
    work[:, 1] += 0.1
    work[4::20, 1] += 0.5
    (one,) = outliers(work).ranks
    pauses, steady = one.faults
    assert (pauses.every, steady.pauses, steady.steady) == (20, (), True)
    assert pauses.size.value == pytest.approx(0.025, rel=0.05)
    assert steady.size.value == pytest.approx(0.1, rel=0.05)
    assert one.size.value == pytest.approx(0.125, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_late_from_some_step_on_stands_out(ranks: int) -> None:
    """In the last tenth of the steps, which the trimmed mean leaves out."""
    work = noisy("gaussian", 2, 300, ranks)
    work[270:, 1] += 0.3
    (one,) = outliers(work).ranks
    assert (one.rank, one.rows) == (1, (270, 299))
    assert one.size.value == pytest.approx(0.03, rel=0.05)
    assert [one.rows for one in outliers(work[:280]).ranks if one.rows is not None] == [], "it may be a disturbance"


@pytest.mark.parametrize("steps", [slice(230, 260), slice(100, 200), slice(20, 60), slice(0, 40)])
def test_a_rank_that_is_late_for_a_while_stands_out(steps: slice) -> None:
    work = noisy("gaussian", 2, 300, 2)
    work[steps, 1] += 0.1
    (one,) = outliers(work).ranks
    assert (one.rank, one.rows) == (1, (steps.start, steps.stop - 1))
    share = (steps.stop - steps.start) / 300
    assert one.size.value == pytest.approx(0.1 * share, rel=0.1)
    assert one.size.low is not None
    assert one.size.low > 0.9 * 0.1 * share, "when it is late is no chance"
    assert not is_correlated(work), "a change of level is no resemblance of steps"


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_equal_ranks_are_not_late_for_a_while(correlation: float) -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        noise = rng.normal(0.0, 0.01, (120, 4))
        for step in range(1, 120):
            noise[step] += correlation * noise[step - 1]
        assert _late_for_a_while(beyond_others(1.0 + noise)) == {}


def test_one_disturbance_of_several_steps_is_no_pause_in_every_nth_step() -> None:
    out = 0
    for seed in range(20):
        work = noisy("gaussian", seed, 90, 2)
        work[40:46, seed % 2] += 0.3
        out += bool(outliers(work).ranks)
    assert out == 0


@pytest.mark.parametrize(
    ("steps", "number", "ranks"),
    in_short(((20, 4, 2), (90, 4, 2), (90, 6, 8), (90, 3, 2), (40, 5, 4)), (20, 4, 2), (90, 3, 2)),
)
def test_as_many_pauses_at_any_steps_make_nobody_stand_out(steps: int, number: int, ranks: int) -> None:
    rng, out = np.random.default_rng(5), 0
    for seed in range(200):
        work = noisy("gaussian", seed, steps, ranks)
        work[rng.choice(steps, number, replace=False), rng.integers(ranks, size=number)] += 0.3
        out += bool(outliers(work).ranks)
    assert out <= 2
