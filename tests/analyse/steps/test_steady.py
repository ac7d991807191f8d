"""Which steps rates rest on, and the rates."""

from __future__ import annotations

from collections.abc import Callable

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


def test_steps_that_a_rank_did_not_record_are_left_out(make_records: MakeRecords) -> None:
    records = make_records([[100, 100]] * 6, tags={(5, 0): ["evaluation"]})
    ragged = records.filter((pl.col("rank") == 0) | (pl.col("step") < 4))  # rank 1 was killed in step 4
    steady = steady_steps(ragged, ranks=2)
    assert steady.steps[steady.used].tolist() == [0, 1, 2, 3]
    assert steady.left_out == {"evaluation": 1, "not_on_all_ranks": 1}
    nobody = steady_steps(records, ranks=3)
    assert nobody.left_out == {"evaluation": 1, "not_on_all_ranks": 5}
    assert not nobody.used.any()


def test_every_step_is_used_or_counted_once(make_records: MakeRecords) -> None:
    tags = {(step, step % 3): [("warmup", "checkpoint", "evaluation")[step % 3]] for step in range(0, 30, 2)}
    steady = steady_steps(make_records([[10, 10, 10]] * 30, tags=tags), ranks=3)
    assert steady.used.sum() + sum(steady.left_out.values()) == 30


def test_an_interrupted_step_with_more_samples_makes_no_other_ragged(make_records: MakeRecords) -> None:
    samples = [[32, 32]] * 5 + [[64, 64]] + [[8, 8]]
    steady = steady_steps(make_records([[10, 10]] * 7, samples=samples, tags={(5, 0): ["warmup"]}), ranks=2)
    assert steady.left_out == {"warmup": 1, "ragged": 1}
    assert steady.steps[steady.used].tolist() == [0, 1, 2, 3, 4]


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
