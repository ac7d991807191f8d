"""What a sample reads, of a program that reads other things before it trains, and is sampled once a second."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.rundir.read.counters import COUNTERS_SCHEMA
from allpull.rundir.read.run import RunData
from allpull.schema.results import Io

STEP_MS, SAMPLES, SIZE = 50.0, 16, 65_536
BASE_NS = 10**12
IMPORTED = 40_000_000  # bytes that Python reads in the second before the first step


def counters(ranks: int, seconds: float, begin_s: float) -> pl.DataFrame:
    """Samples of each second from ``begin_s`` before the first step on: imports, then the data of each step, evenly."""
    rows = []
    for place in range(int(seconds + begin_s) + 1):
        since_s = place - begin_s
        trained = min(max(since_s, 0.0), seconds) / (STEP_MS / 1000) * SAMPLES
        read = IMPORTED * min(1.0, (since_s + begin_s) / begin_s) + SIZE * trained
        for rank in range(ranks):
            values = {"rank": rank, "host": "a", "t_ns": BASE_NS + round(since_s * 1e9), "read_bytes": round(read)}
            rows.append({**values, "read_calls": round(trained), "storage_read_bytes": 0})
    missing = dict.fromkeys(COUNTERS_SCHEMA)
    return pl.DataFrame([{**missing, **row} for row in rows], schema=COUNTERS_SCHEMA)


def io_of(
    make_records: Callable[..., pl.DataFrame], make_data: Callable[..., RunData], steps: int, begin_s: float
) -> Io:
    wall = [[STEP_MS] * 2] * steps
    records = make_records(wall, forward=wall, samples=[[SAMPLES] * 2] * steps)
    sampled = counters(2, steps * STEP_MS / 1000, begin_s)
    return metrics(AlignedRun(make_data(records, 2, counters=sampled)), None).io


@pytest.mark.parametrize("begin_s", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("steps", [60, 400])
def test_a_sample_reads_what_it_reads_however_short_the_run_is(
    make_records: Callable[..., pl.DataFrame], make_data: Callable[..., RunData], steps: int, begin_s: float
) -> None:
    found = io_of(make_records, make_data, steps, begin_s)
    assert found.read_bytes_per_sample == pytest.approx(SIZE, rel=1e-6)
    assert found.reads_per_sample == pytest.approx(1.0, rel=1e-3)


def test_a_run_that_ends_before_its_second_sample_tells_nothing(
    make_records: Callable[..., pl.DataFrame], make_data: Callable[..., RunData]
) -> None:
    found = io_of(make_records, make_data, steps=24, begin_s=0.5)
    assert found.read_bytes_per_sample is None
