"""What a run used over its time adds up to what its counters say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.usage import MOST_POINTS, usage
from allpull.rundir.read.run import RunData, read_run

KEPT = Path(__file__).resolve().parents[1] / "runs" / "v1.5"


@pytest.fixture(scope="module")
def run() -> RunData:
    return read_run(KEPT)


def test_cpu_time_over_the_run_is_what_the_counters_grew_by(run: RunData) -> None:
    cpus = next(one for one in usage(AlignedRun(run)) if one.name == "cpus")
    sampled = run.counters.drop_nulls("cpu_ns").sort("t_ns")
    begin_s = (sampled["t_ns"].min() - run.steps["begin_ns"].min()) / 1e9
    used_s = float(np.dot(cpus.values, np.diff([begin_s, *cpus.times_s])))
    of_ranks = sampled.group_by("rank").agg((pl.col("cpu_ns").last() - pl.col("cpu_ns").first()).alias("grown"))
    assert used_s == pytest.approx(of_ranks["grown"].sum() / 1e9, rel=0.02)


def test_every_step_is_a_point_and_many_keep_their_slowest(run: RunData) -> None:
    step = next(one for one in usage(AlignedRun(run)) if one.name == "step")
    assert len(step.values) == run.steps["step"].n_unique() <= MOST_POINTS
    copies = 1 + 2 * MOST_POINTS // len(step.values)
    later = [
        (pl.col("step") + copy * 10_000, pl.col("begin_ns", "end_ns") + copy * 60 * 10**9) for copy in range(copies)
    ]
    many = pl.concat([run.steps.with_columns(*shift) for shift in later])
    odd = pl.col("step") == 10_000 + run.steps["step"].max()
    slow = many.with_columns(pl.when(odd).then(pl.col("end_ns") + 9 * 10**9).otherwise("end_ns").alias("end_ns"))
    by_name = {one.name: one for one in usage(AlignedRun(replace(run, steps=slow)))}
    assert len(by_name["step"].values) == MOST_POINTS
    assert max(by_name["slowest step"].values) > 9


def test_without_steps_there_is_nothing_to_draw(run: RunData) -> None:
    assert usage(AlignedRun(replace(run, steps=run.steps.clear()))) == []
