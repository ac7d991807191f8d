"""One run from columns to metrics, several to a table: what must always hold."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import detail, metrics
from allpull.analyse.scaling import facts, in_order, scaling_table
from allpull.rundir.read.run import RunData
from allpull.schema.events import Metric
from allpull.schema.results import RunDetail, RunMetrics

MakeRecords = Callable[..., pl.DataFrame]
MakeData = Callable[..., RunData]
STEPS = 40


def timeline(ranks: int) -> dict[str, Any]:
    """A healthy run of ``STEPS`` steps of about 100 ms, in ms, the first two tagged."""
    rng = np.random.default_rng(5)
    work = 60 + 5 * rng.random((STEPS, ranks))
    done = work.max(axis=1, keepdims=True) + 25
    wall = np.broadcast_to(done + 6, (STEPS, ranks))
    names = {
        "wall": wall,
        "input": 1 + 0 * work,
        "forward": work / 3,
        "backward": 2 * work / 3 - 1 + (done - work),
        "optimizer": 5 + 0 * work,
        "arrival": work,
        "done": np.broadcast_to(done, (STEPS, ranks)),
        "recording": 0.01 + 0 * work,
    }
    tags = {(step, 0): ["warmup"] for step in (0, 1)}
    return {**{name: table.tolist() for name, table in names.items()}, "tags": tags}


def metrics_of(run: RunData) -> RunMetrics:
    return metrics(AlignedRun(run))


def test_a_run_has_all_its_metrics(make_records: MakeRecords, make_data: MakeData, make_log: Any) -> None:
    top1 = Metric(kind="metric", name="test_top1", value=0.97, step=40, epoch=0, t_ns=1)
    run = make_data(make_records(**timeline(2)), 2, global_batch=128, events={0: make_log(metrics=(top1,))})
    found = metrics_of(run)
    assert found.steady.used == STEPS - 2
    assert found.steady.left_out == {"warmup": 2}
    assert found.throughput is not None
    assert found.throughput.low is not None
    assert found.step_s is not None
    assert found.throughput.value == pytest.approx(128 / found.step_s.median, rel=0.02)
    assert found.samples_per_rank_step == 64
    assert sum(value for value in found.phases.values() if value is not None) == pytest.approx(
        float(np.mean(timeline(2)["wall"][2:])) / 1000
    )
    assert found.closure_error == pytest.approx(0, abs=1e-12)
    assert found.phases["transfer"] == pytest.approx(0.025)
    assert found.overhead.share == pytest.approx(0.01 / np.mean(timeline(2)["wall"]))
    assert found.accuracy == 0.97
    assert found.speedup is None
    assert found.gaps == ["no counters were recorded: reading is not measured"]


def test_not_measured_is_null_everywhere(make_records: MakeRecords, make_data: MakeData) -> None:
    found = metrics_of(make_data(make_records([[1.0, 1.0]]).clear(), 2, boots=[]))
    nulls = found.model_dump()
    for name in ("throughput", "step_s", "closure_error", "accuracy", "samples_per_rank_step"):
        assert nulls[name] is None, name
    assert set(found.phases.values()) == {None}
    assert set(found.io.model_dump(exclude={"windows"}).values()) == {None}
    assert found.io.windows == []
    assert found.overhead.share is None
    assert found.gaps[0] == "no step was recorded by any rank: no rates"


def test_a_run_with_odd_steps_alone_says_why_it_has_no_rates(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records([[10.0, 10.0]] * 3, tags={(step, 0): ["warmup"] for step in range(3)})
    found = metrics_of(make_data(records, 2))
    assert (found.throughput, found.step_s) == (None, None)
    assert "no steady step is left: no rates (warmup 3); more steps per epoch or more epochs leave some" in found.gaps
    lonely = metrics_of(make_data(make_records([[10.0, 10.0]] * 3), 3, boots=["boot"] * 2))
    assert "no step was recorded by all ranks: no rates" in lonely.gaps
    assert lonely.throughput is None
    unknown = metrics_of(make_data(make_records([[10.0]] * 9, samples=[[None]] * 9), 1))
    assert "samples of some steps were not recorded: no throughput" in unknown.gaps
    assert unknown.step_s is not None


def test_ragged_steps_are_left_out_and_never_stand_for_the_others(
    make_records: MakeRecords, make_data: MakeData
) -> None:
    """The last batch of an epoch is smaller, and its rate another; if only such are left, there is no rate."""
    samples = [[64, 64], [64, 64], [3, 2]] * 5
    found = metrics_of(make_data(make_records([[10.0, 10.0]] * 15, samples=samples), 2))
    assert found.steady.left_out == {"ragged": 5}
    assert found.samples_per_rank_step == 64
    first = {(step, 0): ["first_batch"] for step in range(0, 15, 3)} | {
        (step, 0): ["warmup"] for step in range(1, 15, 3)
    }
    none = metrics_of(make_data(make_records([[10.0, 10.0]] * 15, samples=samples, tags=first), 2))
    assert none.throughput is None


@pytest.mark.parametrize("name", ["test_top1", "test_map"])
def test_a_null_accuracy_is_a_gap(make_records: MakeRecords, make_data: MakeData, make_log: Any, name: str) -> None:
    null = Metric(kind="metric", name=name, value=None, step=1, epoch=0, t_ns=1)
    found = metrics_of(make_data(make_records([[10.0]] * 9), 1, events={0: make_log(metrics=(null,))}))
    assert found.accuracy is None
    assert f"{name} of the last evaluation is null: it could not be computed" in found.gaps


def same(one: RunMetrics, other: RunMetrics, *, seconds: float = 1.0) -> None:
    """Equal but for rounding, after the unit of time shrank by ``seconds``."""
    assert one.throughput is not None
    assert other.throughput is not None
    for bound in ("low", "value", "high"):
        assert getattr(other.throughput, bound) * seconds == pytest.approx(getattr(one.throughput, bound), rel=1e-9)
    assert one.step_s is not None
    assert other.step_s is not None
    assert other.step_s.p95 / seconds == pytest.approx(one.step_s.p95, rel=1e-9)
    unknown = [name for name, value in one.phases.items() if value is None]
    assert [name for name, value in other.phases.items() if value is None] == unknown
    scaled = {name: value / seconds for name, value in other.phases.items() if value is not None}
    assert scaled == pytest.approx({name: one.phases[name] for name in scaled}, rel=1e-9, abs=1e-12)
    assert other.closure_error == pytest.approx(one.closure_error, abs=1e-9)
    assert other.overhead.share == pytest.approx(one.overhead.share, rel=1e-9)
    assert (one.steady, one.gaps) == (other.steady, other.gaps)


def test_relabelling_ranks_changes_nothing(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records(**timeline(4))
    relabelled = records.with_columns(pl.col("rank").replace({0: 2, 1: 0, 2: 3, 3: 1})).sort("rank", "step")
    same(metrics_of(make_data(records, 4)), metrics_of(make_data(relabelled, 4)))


def test_the_order_of_rows_changes_nothing(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records(**timeline(3))
    same(metrics_of(make_data(records, 3)), metrics_of(make_data(records.sample(fraction=1, shuffle=True, seed=1), 3)))


def test_shifting_the_clock_changes_nothing(make_records: MakeRecords, make_data: MakeData) -> None:
    shifted = make_records(**timeline(2), base_ns=3 * 10**18)
    same(metrics_of(make_data(make_records(**timeline(2)), 2)), metrics_of(make_data(shifted, 2)))


def test_time_scales_with_its_unit(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records(**timeline(2))
    slower = records.with_columns(pl.col("^.*_ns$") * 1000)
    same(metrics_of(make_data(records, 2)), metrics_of(make_data(slower, 2)), seconds=1000)


def test_hosts_without_a_common_clock_cannot_split_waiting(make_records: MakeRecords, make_data: MakeData) -> None:
    found = metrics_of(make_data(make_records(**timeline(2)), 2, boots=["one", "two"]))
    assert found.hosts == 2
    assert (found.phases["wait"], found.phases["transfer"]) == (None, None)
    assert any("clocks of the hosts are not aligned" in gap for gap in found.gaps)


def test_details_are_bounded_and_serialise(make_records: MakeRecords, make_data: MakeData) -> None:
    run = make_data(make_records([[10.0]] * 5000), 1)
    found = detail(AlignedRun(run), metrics_of(run))
    assert len(found.step_times_s) == 2000
    assert set(found.step_times_s) == {0.01}
    assert RunDetail.model_validate_json(found.model_dump_json()) == found


def test_a_directory_that_is_not_utf8_can_be_said(make_records: MakeRecords, make_data: MakeData) -> None:
    run = dataclasses.replace(make_data(make_records([[10.0]]), 1), directory=Path(os.fsdecode(b"runs/\xff")))
    assert metrics_of(run).directory == "runs/\\xff"


def test_a_table_of_two_sizes(make_records: MakeRecords, make_data: MakeData) -> None:
    small = make_data(make_records([[100.0]] * 30), 1, global_batch=64)
    large = make_data(make_records([[125.0] * 4] * 30), 4, global_batch=256, id="large")
    show = scaling_table([AlignedRun(large), AlignedRun(small)])
    assert [run.run for run in show.runs] == ["run-1", "large"]
    assert show.scaling == "weak"
    assert show.runs[1].speedup == pytest.approx(3.2)
    assert show.runs[1].efficiency == pytest.approx(0.8)
    assert show.notes == []


def test_runs_of_one_size_go_by_time(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records([[100.0]] * 9)
    late = make_data(records, 1, id="a", created_utc="2026-02-01T00:00:00Z")
    early = make_data(records, 1, id="b", created_utc="2026-01-01T00:00:00Z")
    assert [run.data.record.id for run in in_order([AlignedRun(late), AlignedRun(early)])] == ["b", "a"]
    assert scaling_table([AlignedRun(late), AlignedRun(early)]).reference == "b"


def test_what_makes_runs_unlike_is_noted_by_its_key(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records([[100.0]] * 9)
    spec = {"model": {"name": "resnet8", "width": 32, "dtype": "float64"}, "data": {"name": "digits"}}
    other = make_data(records, 1, id="z", spec=spec, threads_per_rank=2)
    (note, *_) = [
        note for note in scaling_table([AlignedRun(make_data(records, 1)), AlignedRun(other)]).notes if "fairly" in note
    ]
    assert note.endswith("they differ in model.dtype (not set, float64); model.width (16, 32); threads_per_rank (1, 2)")


def test_facts_of_any_spec_are_flat_words(make_records: MakeRecords, make_data: MakeData) -> None:
    odd = {"model": "just a name", "data": {"a": {"b": [1, None]}, "c": None}, "train": {"batch": 3}}
    run = make_data(make_records([[1.0]]), 1, spec=odd, threads_per_rank=None, versions={"torch": None})
    assert facts(run) == {"model": "just a name", "data.a.b": "[1, None]"}


def test_extreme_numbers_give_numbers_or_null(make_records: MakeRecords, make_data: MakeData) -> None:
    records = make_records([[1e-6]] * 20, samples=[[2**62]] * 20)
    found = metrics_of(make_data(records, 1))
    assert found.throughput is not None
    assert math.isfinite(found.throughput.value)
    assert RunMetrics.model_validate_json(found.model_dump_json()) == found
