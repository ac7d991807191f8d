"""Speed-up, efficiency and what a scaling table must say beside them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.analyse.scaling import kind, ratio, table
from allpull.schema.reading import Io
from allpull.schema.results import Interval, Overhead, RunMetrics, ShowResult, Steady


def metrics(ranks: int, rate: float | None, *, half: float = 0.01, **changes: Any) -> RunMetrics:
    """A run of weak scaling with ``rate`` samples/s ± ``half`` of it."""
    interval = None if rate is None else Interval(value=rate, low=rate * (1 - half), high=rate * (1 + half))
    values: dict[str, Any] = {
        "run": f"run-{ranks}",
        "name": "made",
        "directory": "runs/made",
        "status": "completed",
        "ranks": ranks,
        "hosts": 1,
        "global_batch": 64 * ranks,
        "samples_per_rank_step": 62.0,
        "steady": Steady(used=100, left_out={}),
        "throughput": interval,
        "step_s": None,
        "phases": {},
        "closure_error": None,
        "io": Io(read_bytes_per_s=None, reads_per_s=None, storage_read_bytes_per_s=None),
        "overhead": Overhead(share=None),
        "gaps": [],
    }
    unknown = ("accuracy", "accuracy_top5", "speedup", "speedup_interval", "efficiency", "efficiency_interval")
    return RunMetrics.model_validate({**dict.fromkeys(unknown), **values, **changes})


def tabulated(*runs: RunMetrics) -> ShowResult:
    return table(runs, [{} for _ in runs])


def test_speedup_and_efficiency_against_the_smallest_run() -> None:
    show = tabulated(metrics(8, 3000), metrics(2, 1000), metrics(16, 4000))
    assert show.reference == "run-2"
    assert [run.ranks for run in show.runs] == [8, 2, 16]  # in the order given
    assert [run.speedup for run in show.runs] == [3.0, 1.0, 4.0]
    assert [run.efficiency for run in show.runs] == [0.75, 1.0, 0.5]
    assert show.scaling == "weak"
    assert show.notes == []


def test_the_interval_of_a_ratio_is_the_delta_methods_where_it_should_be() -> None:
    one = Interval(value=100, low=100 / math.exp(0.03), high=100 * math.exp(0.03))
    other = Interval(value=50, low=50 / math.exp(0.04), high=50 * math.exp(0.04))
    found = ratio(one, other)
    assert found is not None
    assert found.low == pytest.approx(2 * math.exp(-0.05))  # 3-4-5: independent errors add as squares
    assert found.high == pytest.approx(2 * math.exp(0.05))


def test_the_interval_of_a_ratio_covers_by_simulation() -> None:
    """Independent oracle: 95 % of repeated experiments cover the true ratio."""
    rng = np.random.default_rng(3)
    trials, covered = 4000, 0
    for top, bottom in rng.normal([300, 100], [9, 4], size=(trials, 2)):
        found = ratio(
            Interval(value=top, low=top - 1.96 * 9, high=top + 1.96 * 9),
            Interval(value=bottom, low=bottom - 1.96 * 4, high=bottom + 1.96 * 4),
        )
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 3 <= found.high
    assert covered / trials == pytest.approx(0.95, abs=0.012)


@given(values=st.lists(st.floats(1, 1e6), min_size=6, max_size=6))
def test_a_ratio_and_its_inverse_have_inverse_bounds(values: list[float]) -> None:
    (low, one, high), (down, other, up) = sorted(values[:3]), sorted(values[3:])
    top, bottom = Interval(value=one, low=low, high=high), Interval(value=other, low=down, high=up)
    found, inverse = ratio(top, bottom), ratio(bottom, top)
    assert found is not None
    assert inverse is not None
    assert found.value * inverse.value == pytest.approx(1)
    assert found.low is not None
    assert inverse.high is not None
    assert found.low * inverse.high == pytest.approx(1)
    assert found.low <= found.value * (1 + 1e-12)


def test_bounds_that_are_unknown_or_no_rate_stay_unknown() -> None:
    known = Interval(value=10, low=9, high=11)
    unknown = ratio(Interval(value=20, low=None, high=None), known)
    assert unknown == Interval(value=2, low=None, high=None)
    assert ratio(Interval(value=20, low=-1, high=30), known) == Interval(value=2, low=None, high=None)
    assert ratio(Interval(value=0, low=0, high=0), known) is None
    assert ratio(known, Interval(value=0, low=0, high=0)) is None


@pytest.mark.parametrize(
    ("batches", "measured", "expected"),
    [
        ([64, 128, 256], [62.0, 60.0, 55.0], "weak"),  # ragged last batches differ; what was asked for decides
        ([256, 256, 256], [250.0, 125.0, 63.0], "strong"),
        ([64, 128, 512], [62.0, 60.0, 120.0], "mixed"),
        ([64, 129, 256], [62.0, 62.0, 62.0], "weak"),  # within 1 %
        ([None, 128, 256], [62.0, 61.8, 62.1], "weak"),
        ([None, None, None], [240.0, 120.0, 60.0], "strong"),
        ([None, None, None], [240.0, 120.0, 120.0], "mixed"),
        ([64, 128, None], [62.0, None, 62.0], None),
    ],
)
def test_the_kind_of_scaling(batches: list[int | None], measured: list[float | None], expected: str | None) -> None:
    runs = [
        metrics(ranks, 100, global_batch=batch, samples_per_rank_step=samples)
        for ranks, batch, samples in zip([1, 2, 4], batches, measured, strict=True)
    ]
    assert kind(runs) == expected


def test_equal_sizes_are_no_scaling_and_repeats_are_said() -> None:
    show = tabulated(metrics(4, 900, run="a"), metrics(4, 1000, run="b"))
    assert show.scaling is None
    assert show.reference == "a"
    assert show.runs[1].efficiency == pytest.approx(10 / 9)
    assert not any("superlinear" in note for note in show.notes)
    assert "2 runs have 4 ranks; the first of them, a, is the reference" in show.notes
    assert "2 runs have 4 ranks: between 900 and 1,000 samples/s; each has its own row" in show.notes


def test_superlinear_is_said_only_when_the_interval_is_above_one() -> None:
    clear = tabulated(metrics(1, 100), metrics(4, 480))
    assert len(clear.notes) == 1
    assert clear.notes[0].startswith("4 ranks (run-4) scale superlinearly: efficiency 1.2, 95 % interval 1.18 to 1.22.")
    assert "cache" in clear.notes[0]
    assert "memory" in clear.notes[0]
    assert "batch" in clear.notes[0]
    noisy = tabulated(metrics(1, 100, half=0.3), metrics(4, 480, half=0.3))
    assert noisy.runs[1].efficiency == pytest.approx(1.2)
    assert noisy.notes == []
    certain = Interval(value=480, low=None, high=None)
    assert tabulated(metrics(1, 100), metrics(4, None, throughput=certain)).notes == []


def test_a_run_without_throughput_has_no_speedup_and_no_zero() -> None:
    show = tabulated(metrics(1, None), metrics(2, 100), metrics(4, 150))
    assert [run.speedup for run in show.runs] == [None, 1.0, 1.5]
    assert [run.efficiency for run in show.runs] == [None, 1.0, 0.75]
    assert show.notes == [
        "no speed-up for run-1: no throughput was measured there",
        "the reference is run-2, the smallest run with a throughput",
    ]
    nobody = tabulated(metrics(1, None), metrics(2, None))
    assert (nobody.reference, nobody.runs[1].speedup) == (None, None)
    assert nobody.notes == ["no run has a throughput: no speed-up"]


def test_a_single_run_has_nothing_to_be_compared_with() -> None:
    show = tabulated(metrics(4, 100))
    assert (show.reference, show.scaling, show.notes) == (None, None, [])
    assert show.runs[0].speedup is None


def test_what_differs_between_runs_is_named() -> None:
    facts = [{"model.width": "16", "torch": "2.4"}, {"model.width": "32", "torch": "2.4", "threads_per_rank": "2"}]
    notes = table([metrics(1, 100), metrics(2, 150)], facts).notes
    assert notes == [
        "these 2 runs cannot be compared fairly: they differ in model.width (16, 32); threads_per_rank (not set, 2)",
        "runs with another network or other data than the reference have no speed-up: a sample differs",
    ]
    hostile = [{"model.name": "x" * 10_000}, {"model.name": "y"}]
    assert len(table([metrics(1, 100), metrics(2, 150)], hostile).notes[0]) < 200


def test_each_precision_has_its_own_reference_and_a_row_per_size() -> None:
    # by hand: bf16 on one rank is 131.9 % of fp32's throughput, and no scaling
    runs = [
        metrics(1, 100.0, run="fp32-1", precision="fp32"),
        metrics(1, 131.9, run="bf16-1", precision="bf16"),
        metrics(2, 180.0, run="fp32-2", precision="fp32"),
        metrics(2, 250.0, run="bf16-2", precision="bf16"),
    ]
    found = tabulated(*runs)
    assert [(run.reference, run.efficiency) for run in found.runs] == [
        ("fp32-1", 1.0),
        ("bf16-1", 1.0),
        ("fp32-1", pytest.approx(0.9)),
        ("bf16-1", pytest.approx(250 / 131.9 / 2)),
    ]
    assert found.reference == "fp32-1"
    rows = [(one.ranks, one.precision, one.over, one.ratio.value) for one in found.precisions]
    assert rows == [(1, "bf16", "fp32", pytest.approx(1.319)), (2, "bf16", "fp32", pytest.approx(250 / 180))]
    assert found.precisions[0].ratio.low is not None
