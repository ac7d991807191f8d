"""Which steps rates rest on, and the rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest

from allpull.analyse.steps.grid import arrange
from allpull.analyse.steps.steady import steady_steps
from allpull.analyse.steps.throughput import samples_per_rank_step, step_time, throughput

MakeRecords = Callable[..., pl.DataFrame]


def test_a_tag_on_any_rank_leaves_the_step_out_under_its_first_reason(make_records: MakeRecords) -> None:
    tags = {
        (0, 0): ["first_batch", "warmup"],
        (0, 1): ["warmup"],
        (1, 1): ["warmup"],
        (3, 0): ["evaluation", "checkpoint"],
        (4, 1): ["other"],
        (6, 0): ["resumed"],
    }
    steady = steady_steps(make_records([[100, 100]] * 8, tags=tags), ranks=2)
    assert steady.steps[steady.used].tolist() == [2, 5, 7]
    assert steady.left_out == {"warmup": 2, "evaluation": 1, "resumed": 1, "other": 1}


def test_evaluation_in_most_steps_is_what_steps_consist_of(make_records: MakeRecords) -> None:
    def used(every: int) -> int:
        tags = {(step, 0): ["evaluation"] for step in range(0, 12, every)} | {(0, 1): ["warmup"], (1, 1): ["warmup"]}
        return int(steady_steps(make_records([[100, 100]] * 12, tags=tags), ranks=2).used.sum())

    assert [used(every) for every in (1, 2, 3)] == [10, 5, 7]


def test_steps_that_a_rank_did_not_record_are_left_out(make_records: MakeRecords) -> None:
    records = make_records([[100, 100]] * 6, tags={(5, 0): ["evaluation"]})
    ragged = records.filter((pl.col("rank") == 0) | (pl.col("step") < 4))  # rank 1 was killed in step 4
    steady = steady_steps(ragged, ranks=2)
    assert steady.steps[steady.used].tolist() == [0, 1, 2, 3]
    assert steady.left_out == {"evaluation": 1, "not_on_all_ranks": 1}
    nobody = steady_steps(records, ranks=3)
    assert nobody.left_out == {"evaluation": 1, "not_on_all_ranks": 5}
    assert not nobody.used.any()


def test_a_rank_that_waits_in_its_last_step_until_the_others_have_ended(make_records: MakeRecords) -> None:
    records = make_records([[10, 10]] * 5 + [[100, 10]] + [[10, 10]] * 9)
    joined = records.filter((pl.col("rank") == 1) | (pl.col("step") < 6))
    steady = steady_steps(joined, ranks=2)
    assert steady.steps[steady.used].tolist() == [0, 1, 2, 3, 4]
    assert steady.left_out == {"last_of_some_ranks": 1, "not_on_all_ranks": 9}
    alike = joined.filter(pl.col("step") < 6)
    assert steady_steps(alike, ranks=2).used.all()  # slow, but the last of all


def test_every_step_is_used_or_counted_once(make_records: MakeRecords) -> None:
    tags = {(step, step % 3): [("warmup", "checkpoint", "evaluation")[step % 3]] for step in range(0, 30, 2)}
    steady = steady_steps(make_records([[10, 10, 10]] * 30, tags=tags), ranks=3)
    assert steady.used.sum() + sum(steady.left_out.values()) == 30


def test_an_interrupted_step_with_more_samples_makes_no_other_ragged(make_records: MakeRecords) -> None:
    samples = [[32, 32]] * 5 + [[64, 64]] + [[8, 8]]
    steady = steady_steps(make_records([[10, 10]] * 7, samples=samples, tags={(5, 0): ["warmup"]}), ranks=2)
    assert steady.left_out == {"warmup": 1, "ragged": 1}
    assert steady.steps[steady.used].tolist() == [0, 1, 2, 3, 4]


def passes(*sizes: Sequence[int]) -> tuple[list[int], dict[tuple[int, int], list[str]]]:
    """The sizes of all steps of passes over a loader, and the tags of their first batches, as ranks record them."""
    firsts = np.cumsum([0, *map(len, sizes[:-1])])
    return [size for one in sizes for size in one], {(int(step), 0): ["first_batch"] for step in firsts}


GROWING = [[8] * 20, [16] * 20, [24] * 20, [32] * 20]
GROWN = [size for one in GROWING for size in one]
RNG = np.random.default_rng(1)
PACKED = RNG.integers(20, 60, 120).tolist()  # as many samples as fit a budget of tokens


@pytest.mark.parametrize(
    ("sizes", "ragged"),
    [
        ([[64] * 9 + [3]] * 4, [9, 19, 29, 39]),
        ([[64, 3]] * 4, [1, 3, 5, 7]),
        ([[64]] * 6, []),
        ([[64]] * 6 + [[3]], []),  # a pass of one batch has no last one that is shorter
        (GROWING, []),
        ([[8, 8, 4], [16, 16, 8], [24, 24, 16]], [2, 5, 8]),
        ([[8, 4], [16, 8], [24, 12]], [1, 3, 5]),
        ([[32] * 5 + [20], [16] * 11 + [4]], [5, 17]),
        ([GROWN], []),
        ([list(range(8, 64)) + [64] * 60 + [10]], [116]),  # a ramp-up
        ([GROWN[::-1]], []),
        ([PACKED], []),
        ([PACKED[at : at + 40] for at in range(0, 120, 40)], []),
        ([PACKED[at : at + 2] for at in range(0, 120, 2)], []),
        ([[64, 32] * 40], []),  # buckets of images of two sizes
        ([[24, 24, 16] * 20] * 2, []),  # slices of a batch, each with an update of its own
        ([[64] * 50 + [63] + [64] * 49] * 2, [50, 150]),  # a sample that could not be read
    ],
)
def test_only_batches_that_were_cut_short_are_ragged(
    make_records: MakeRecords, sizes: list[list[int]], ragged: list[int]
) -> None:
    samples, tags = passes(*sizes)
    records = make_records([[10, 10]] * len(samples), samples=[[one, one] for one in samples], tags=tags)
    steady = steady_steps(records, ranks=2)
    firsts = {step for step, _ in tags}
    assert steady.steps[~steady.used].tolist() == sorted({*firsts, *ragged})
    assert steady.left_out == {"first_batch": len(firsts), **({"ragged": len(ragged)} if ragged else {})}


@pytest.mark.parametrize(
    ("samples", "ragged"),
    [([64, 64, 3] * 5, 5), ([64, 3] * 5, 5), (GROWN, 0), (PACKED, 0), ([8, 8, 4, 16, 16, 8], 2)],
)
def test_passes_that_were_not_recorded_end_at_short_batches(
    make_records: MakeRecords, samples: list[int], ragged: int
) -> None:
    records = make_records([[10]] * len(samples), samples=[[one] for one in samples])
    assert steady_steps(records, ranks=1).left_out == ({"ragged": ragged} if ragged else {})


def test_steps_of_unknown_size_are_not_ragged(make_records: MakeRecords) -> None:
    records = make_records([[10, 10]] * 4, samples=[[8, 8], [8, None], [None, None], [8, 8]])
    assert steady_steps(records, ranks=2).left_out == {}
    thinned = make_records([[10, 10]] * 6).filter((pl.col("rank") == 0) | (pl.col("step") != 3))
    assert steady_steps(thinned, ranks=2).left_out == {"not_on_all_ranks": 1}


def test_the_rate_of_growing_batches_is_that_of_the_whole_training(make_records: MakeRecords) -> None:
    samples, _ = passes(*GROWING)
    records = make_records([[2.0 * one] for one in samples], samples=[[one] for one in samples])
    steady = steady_steps(records, ranks=1)
    rate = throughput(arrange(records, steady.steps[steady.used], 1))
    assert rate is not None
    assert rate.value == pytest.approx(500, rel=1e-9)
    assert steady.used.all()


def test_no_records_no_steps(make_records: MakeRecords) -> None:
    steady = steady_steps(make_records([[1, 1]]).clear(), ranks=2)
    assert (steady.steps.size, steady.left_out) == (0, {})


def test_throughput_is_a_ratio_of_sums(make_records: MakeRecords) -> None:
    # 3 steps of 128 samples in 0.1 s and one of 64 in 0.3 s: 448 samples in 0.6 s
    records = make_records([[100, 100]] * 3 + [[200, 400]], samples=[[64, 64]] * 3 + [[32, 32]])
    grid = arrange(records, np.arange(4), 2)
    rate = throughput(grid)
    assert rate is not None
    assert rate.value == pytest.approx(448 / 0.6, rel=1e-12)  # the mean of the four rates would be 1013
    assert (rate.low, rate.high) == (None, None)
    assert samples_per_rank_step(grid) == 56
    times = step_time(grid)
    assert times is not None
    assert times.median == pytest.approx(0.1)
    assert times.p95 == pytest.approx(0.1 + 0.85 * 0.2)  # 95 % of the way through four sorted values


def test_samples_not_recorded_are_no_throughput(make_records: MakeRecords) -> None:
    grid = arrange(make_records([[100, 100]] * 3, samples=[[64, 64], [64, None], [64, 64]]), np.arange(3), 2)
    assert throughput(grid) is None
    assert samples_per_rank_step(grid) is None
    assert step_time(grid) is not None


def test_no_steps_and_no_time_are_no_throughput(make_records: MakeRecords) -> None:
    nothing = arrange(make_records([[100]]), np.array([], dtype=np.int64), 1)
    assert (throughput(nothing), step_time(nothing), samples_per_rank_step(nothing)) == (None, None, None)
    assert throughput(arrange(make_records([[0.0]] * 9), np.arange(9), 1)) is None


def test_nanoseconds_are_subtracted_before_they_are_floats(make_records: MakeRecords) -> None:
    late = 4 * 10**18  # where neighbouring float64 are 512 ns apart
    grid = arrange(make_records([[0.000_001], [0.000_003]], base_ns=late), np.arange(2), 1)
    assert grid.wall_s[:, 0].tolist() == pytest.approx([1e-9, 3e-9], rel=1e-12)
