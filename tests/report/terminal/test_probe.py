"""What probes print: the numbers of their results, with their bounds, and a sentence where there are none."""

from __future__ import annotations

import pytest

from allpull.report.terminal.probe import allreduce_table, clock_table
from allpull.schema.base import tag
from allpull.schema.results import AllreduceResult, ClockOffset, ClockResult, CollectiveTime, Interval, RingFit

OFFSET = ClockOffset(
    host="n2", against="n1", clock="monotonic", offset_s=-2e-3, offset_bound_s=1e-5, drift_ppm=None,
    drift_bound_ppm=None, round_trip_s=2e-5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "drift"),
    [({}, "drift unknown, the probe was too short"), ({"drift_ppm": 12.0, "drift_bound_ppm": 3.0}, "drift 12 ± 3 ppm")],
)
def test_an_offset_comes_with_its_bound(changes: dict[str, float], drift: str) -> None:
    result = ClockResult(schema=tag("clock"), run="r", hosts=2, offsets=[OFFSET.model_copy(update=changes)])
    assert clock_table(result).split() == [
        "n2",
        "monotonic",
        "-2,000",
        "±",
        "10",
        "µs",
        "against",
        "n1;",
        *drift.split(),
    ]


def test_one_host_has_nothing_to_compare() -> None:
    assert clock_table(ClockResult(schema=tag("clock"), run="r", hosts=1, offsets=[])).startswith("One host")


def test_all_reduces_are_tabulated_as_nccl_tests_do() -> None:
    time = CollectiveTime(
        size_bytes=8 << 20, repetitions=9, time_s=1e-3, time_p95_s=2e-3, algbw_bytes_per_s=8e9, busbw_bytes_per_s=12e9
    )
    fit = RingFit(
        latency_s=Interval(value=1e-5, low=5e-6, high=None),
        link_bytes_per_s=Interval(value=1 << 30, low=None, high=None),
        worst_error=0.1,
    )
    shared = {"schema": tag("allreduce"), "run": "r", "ranks": 4, "hosts": 2, "backend": None, "device": None}
    *_, row, words = allreduce_table(AllreduceResult(**shared, results=[time], fit=fit)).splitlines()
    assert row.split() == ["8388608", "2097152", "float", "sum", "1000.0", "8.000", "12.000"]
    assert "10 µs (5 µs to ?) per message" in words
    assert allreduce_table(AllreduceResult(**shared, results=[time], fit=None)).splitlines()[-1].startswith("No fit")
