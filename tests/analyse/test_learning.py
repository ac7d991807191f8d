"""Curves, accuracy, reading and recording cost, from events and counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from allpull.analyse import learning
from allpull.analyse.coverage import recording_overhead
from allpull.analyse.io import steady_rates
from allpull.analyse.statistics import evenly
from allpull.rundir.read.counters import COUNTERS_SCHEMA
from allpull.rundir.read.events import EventLog
from allpull.schema.events import EpochMark, Metric

MakeLog = Callable[..., EventLog]
MakeRecords = Callable[..., pl.DataFrame]


def metric(name: str, value: float | None, step: int, epoch: int) -> Metric:
    return Metric(kind="metric", name=name, value=value, step=step, epoch=epoch, t_ns=step)


def mark(epoch: int, step: int) -> EpochMark:
    return EpochMark(kind="epoch", epoch=epoch, step=step, t_ns=step)


def test_a_test_metric_is_known_when_its_epoch_is_done(make_log: MakeLog) -> None:
    log = make_log(metrics=(metric("test_top1", 0.5, 10, 0), metric("test_top1", 0.9, 20, 1)))
    (curve,) = learning.curves({0: log})
    assert (curve.name, curve.epochs, curve.values) == ("test_top1", [1.0, 2.0], [0.5, 0.9])
    assert learning.last_value({0: log}, "test_top1") == 0.9


def test_scores_of_several_labels_are_curves_too(make_log: MakeLog) -> None:
    names = ["test_loss", "test_f1_micro", "test_f1_macro", "test_map"]
    log = make_log(metrics=tuple(metric(name, 0.5, 10, 0) for name in reversed(names)))
    assert [curve.name for curve in learning.curves({0: log})] == names


def test_training_loss_stands_within_its_epoch(make_log: MakeLog) -> None:
    losses = tuple(metric("train_loss", 2.0, step, step // 40) for step in (10, 20, 60))
    said = make_log(metrics=(metric("steps_per_epoch", 40, 0, 0), *losses))
    marked = make_log(metrics=losses, epochs=(mark(0, 0), mark(1, 40), mark(2, 80)))
    unknown = make_log(metrics=losses, epochs=(mark(0, 0),))
    assert learning.curves({0: said})[0].epochs == [0.25, 0.5, 1.5]
    assert learning.curves({0: marked})[0].epochs == [0.25, 0.5, 1.5]
    assert learning.curves({0: unknown})[0].epochs == [1.0, 1.0, 2.0]


def test_an_epoch_that_was_resumed_within_does_not_shorten_epochs(make_log: MakeLog) -> None:
    assert learning.steps_per_epoch({0: make_log(epochs=(mark(3, 150), mark(4, 160), mark(5, 200)))}) == 40
    assert learning.steps_per_epoch({0: make_log(epochs=(mark(0, 0), mark(2, 80)))}) is None
    assert learning.steps_per_epoch({0: make_log(metrics=(metric("steps_per_epoch", -4, 0, 0),))}) is None
    assert learning.steps_per_epoch({}) is None


def test_the_lowest_rank_that_speaks_is_heard(make_log: MakeLog) -> None:
    logs = {
        2: make_log(2, metrics=(metric("test_top1", 0.1, 1, 0),)),
        1: make_log(1, metrics=(metric("test_top1", 0.7, 1, 0),)),
        0: make_log(0, metrics=(metric("test_loss", 1.0, 1, 0),)),
    }
    assert learning.last_value(logs, "test_top1") == 0.7


def test_a_null_metric_stays_null(make_log: MakeLog) -> None:
    log = make_log(metrics=(metric("test_top1", 0.5, 10, 0), metric("test_top1", None, 20, 1)))
    assert learning.last_value({0: log}, "test_top1") is None
    assert learning.curves({0: log})[0].values == [0.5, None]
    assert learning.last_value({0: log}, "test_top5") is None


def test_a_long_curve_is_thinned_with_its_ends(make_log: MakeLog) -> None:
    losses = tuple(metric("train_loss", float(step), step, 0) for step in range(12_345))
    (curve,) = learning.curves({0: make_log(metrics=losses)})
    assert len(curve.values) == learning.MAX_CURVE_POINTS
    assert (curve.values[0], curve.values[-1]) == (0.0, 12_344.0)
    assert evenly([], 2) == []


def counters(*rows: tuple[int, int, Any, Any]) -> pl.DataFrame:
    """Rank, seconds, read bytes, read calls."""
    return pl.DataFrame(
        [
            {"host": "here", "rank": rank, "t_ns": at * 10**9, "processes": 1, "read_bytes": size, "read_calls": calls}
            for rank, at, size, calls in rows
        ],
        schema=COUNTERS_SCHEMA,
    )


def windows(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Rank, first and last second."""
    return pl.DataFrame(
        [(rank, begin * 10**9, end * 10**9) for rank, begin, end in rows],
        schema={"rank": pl.Int64, "begin_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )


def test_reading_is_growth_over_time_within_the_window_summed_over_ranks() -> None:
    samples = counters(
        (0, 0, 10**6, 900), (0, 2, 10**6, 1000), (0, 4, 3 * 10**6, 1100), (0, 99, 10**12, 10**9),
        (1, 1, 0, 0), (1, 5, 2 * 10**6, 400),
    )  # fmt: skip
    found = steady_rates.reading(samples, windows((0, 2, 10), (1, 1, 10)), ranks=2)
    assert found.read_bytes_per_s == pytest.approx(1e6 + 0.5e6)
    assert found.reads_per_s == pytest.approx(50 + 100)
    assert found.storage_read_bytes_per_s is None  # never recorded: null, not 0


def test_reading_nothing_is_a_measured_zero() -> None:
    found = steady_rates.reading(counters((0, 1, 5, 5), (0, 2, 5, 5)), windows((0, 0, 9)), ranks=1)
    assert (found.read_bytes_per_s, found.reads_per_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    "samples",
    [
        counters(),
        counters((0, 1, 5, 5), (1, 1, 5, 5)),
        counters((0, 1, 5, 5), (0, 2, 6, 6)),  # rank 1 has none
        counters((0, 1, 5, 5), (0, 2, 6, 6), (1, 1, 5, 5), (1, 2, None, None)),
        counters((0, 1, 5, 5), (0, 2, 6, 6), (1, 1, 5, 5), (1, 1, 6, 6)),  # no time between
    ],
)
def test_reading_of_less_than_all_ranks_is_not_measured(samples: pl.DataFrame) -> None:
    assert steady_rates.reading(samples, windows((0, 0, 9), (1, 0, 9)), ranks=2).read_bytes_per_s is None


def test_a_worker_that_ends_takes_no_bytes_away() -> None:
    samples = counters((0, 0, 100, 0), (0, 1, 300, 0), (0, 2, 50, 0), (0, 3, 150, 0))
    assert steady_rates.reading(samples, windows((0, 0, 9)), ranks=1).read_bytes_per_s == pytest.approx((200 + 100) / 3)


def test_recording_cost_is_a_share_of_the_steps_that_measured_it(make_records: MakeRecords) -> None:
    records = make_records([[100, 100]] * 3, recording=[[None, None], [1, 3], [1, 3]])
    assert recording_overhead(records).share == pytest.approx(8 / 400)
    assert recording_overhead(make_records([[100, 100]])).share is None
    assert recording_overhead(records.clear()).share is None
