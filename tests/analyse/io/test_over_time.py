"""Rates over time add up to what the counters say, and energy to what devices used."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.analyse.clock.host_clocks import align
from allpull.analyse.io import over_time
from allpull.analyse.io.over_time import COUNTED, MAX_INTERVALS, energy_of_epochs, epoch_spans, io_series
from allpull.rundir.read.counters import COUNTERS_SCHEMA, GPUS_SCHEMA, PINGS_SCHEMA
from allpull.rundir.read.events import EventLog
from allpull.schema.events import End, EpochMark, EventsHeader

S = 10**9


def rows(host: str, rank: int, samples: list[tuple[float, int | None]], **factors: float) -> list[dict[str, Any]]:
    """Samples of one rank: seconds and bytes read; other counters are that times a factor."""
    return [
        {
            "host": host,
            "rank": rank,
            "t_ns": round(at_s * S),
            "processes": 1,
            "read_bytes": read,
            **{name: None if read is None else round(read * factor) for name, factor in factors.items()},
        }
        for at_s, read in samples
    ]


def counters(*parts: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([row for part in parts for row in part], schema=COUNTERS_SCHEMA)


@given(
    samples=st.lists(st.integers(0, 9), max_size=6).map(sorted),
    at=st.lists(st.integers(-2, 12), max_size=6),
    data=st.data(),
)
def test_counters_between_samples_are_those_of_numpy(samples: list[int], at: list[int], data: st.DataObject) -> None:
    """Bit for bit, also at two samples of one moment, with a single sample, and beyond the samples."""
    amounts = data.draw(st.lists(st.integers(0, 10**12), min_size=len(samples), max_size=len(samples)))
    known_at, values, moments = (np.array(part, dtype=np.float64) for part in (samples, amounts, at))
    found = over_time._interpolated(moments, known_at, np.stack([values, 3 * values]))
    for row, own in zip(found, (values, 3 * values), strict=True):
        if len(samples):
            np.testing.assert_array_equal(row, np.interp(moments, known_at, own, left=np.nan, right=np.nan))
        else:
            assert np.isnan(row).all()


def test_rates_of_reads_and_of_storage():
    """100 MB/s for 2 s, a tenth of it from storage, in reads of 1 MB; then nothing."""
    one = rows(
        "a", 0, [(10, 0), (11, 10**8), (12, 2 * 10**8), (14, 2 * 10**8)], read_calls=1e-6, storage_read_bytes=0.1
    )
    series = io_series(counters(one))
    assert series.begin_ns.tolist() == [10 * S, 11 * S, 12 * S]
    assert series.per_s["read_bytes"].tolist() == [1e8, 1e8, 0]
    assert series.per_s["read_calls"].tolist() == [100, 100, 0]
    assert series.per_s["storage_read_bytes"].tolist() == [1e7, 1e7, 0]
    assert np.isnan(series.per_s["write_bytes"]).all()  # not measured is not 0
    assert series.ranks.tolist() == [1, 1, 1]


GROWTH = st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 10**9)), min_size=2, max_size=30)


@given(st.lists(GROWTH, min_size=1, max_size=3))
def test_rates_times_their_times_are_all_that_was_read(ranks):
    """On one host all ranks are sampled at once; which of them has most samples does not matter."""
    times = np.cumsum([step for step, _ in max(ranks, key=len)]).tolist()
    tables, total = [], 0
    for number, steps in enumerate(ranks):
        read = np.cumsum([growth for _, growth in steps]).tolist()
        read += [read[-1]] * (len(times) - len(read))
        tables.append(rows("a", number, [(at / 1000, value) for at, value in zip(times, read, strict=True)]))
        total += read[-1] - read[0]
    series = io_series(counters(*tables))
    seconds = (series.end_ns - series.begin_ns) / S
    assert float((series.per_s["read_bytes"] * seconds).sum()) == pytest.approx(total, rel=1e-9, abs=1e-3)


def test_a_rank_that_comes_later_counts_from_its_first_sample():
    series = io_series(counters(rows("a", 0, [(0, 0), (1, 10), (2, 20)]), rows("a", 1, [(1, 500), (2, 600)])))
    assert series.per_s["read_bytes"].tolist() == [10, 110]
    assert series.ranks.tolist() == [1, 2]


def test_hosts_are_put_on_one_clock_first():
    """Host b's clock is 100 s ahead; without a way to it, it is left out and named."""
    ahead = 100 * S
    moments = [[at + ahead, at, at, at + ahead] for at in (0, 4 * S)]
    pings = pl.DataFrame([("b", "a", *one, *one) for one in moments], schema=PINGS_SCHEMA, orient="row")
    table = counters(
        rows("a", 0, [(0, 0), (1, 10), (2, 20), (3, 30)]), rows("b", 1, [(100.5, 0), (101.5, 100), (102.5, 300)])
    )
    together = io_series(table, align(pings, ["a", "b"]))
    assert together.per_s["read_bytes"] == pytest.approx([10, 10 + 150, 10], rel=1e-6)  # b: 50 and 100 in its second
    assert together.ranks.tolist() == [1, 2, 1]
    apart = io_series(table, align(pings.clear(), ["a", "b"]))
    assert (apart.left_out, apart.begin_ns.size) == (("a", "b"), 0)


def test_a_long_series_gets_longer_intervals_and_loses_nothing():
    samples = [(float(at), 3 * at) for at in range(3 * MAX_INTERVALS)]
    series = io_series(counters(rows("a", 0, samples)))
    assert series.begin_ns.size == MAX_INTERVALS
    assert (series.begin_ns[0], series.end_ns[-1]) == (0, (3 * MAX_INTERVALS - 1) * S)
    assert series.per_s["read_bytes"] == pytest.approx(3)


@pytest.mark.parametrize("samples", [[], [(1.0, 5)], [(1.0, None), (2.0, None)]])
def test_too_little_is_no_rate(samples):
    series = io_series(counters(rows("a", 0, samples)))
    assert all(np.isnan(series.per_s[name]).all() for name in COUNTED)
    assert not series.ranks.any()


# Energy


def gpu(host: str, name: str, samples: list[tuple[float, float | None, float | None]]) -> list[dict[str, Any]]:
    """Seconds, J and W of one device."""
    return [
        {"host": host, "t_ns": round(at_s * S), "gpu": name, "energy_j": energy_j, "power_w": power_w}
        for at_s, energy_j, power_w in samples
    ]


def gpus(*parts: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([row for part in parts for row in part], schema=GPUS_SCHEMA)


EPOCHS = pl.DataFrame(
    [("a", 0, 1 * S, 3 * S), ("a", 1, 3 * S, 4 * S), ("b", 0, 51 * S, 53 * S), ("b", 1, 53 * S, 54 * S)],
    schema=["host", "epoch", "begin_ns", "end_ns"],
    orient="row",
)


def test_energy_is_that_of_all_devices_by_counter_or_by_power():
    table = gpus(
        gpu("a", "0", [(at, 1000 + 300 * at, 999) for at in (0, 2, 4)]),  # its counter: 300 W
        gpu("a", "1", [(at, None, 100 * at) for at in (0, 1, 2, 3, 4)]),  # its power rises: ∫ from 1 to 3 s is 400 J
        gpu("b", "0", [(at, None, 50) for at in (50, 60)]),
    )
    first, second = energy_of_epochs(table, EPOCHS)
    assert (first.epoch, first.gpus, second.epoch) == (0, 3, 1)
    assert first.energy_j == pytest.approx(600 + 400 + 100)
    assert second.energy_j == pytest.approx(300 + 350 + 50)


def test_an_epoch_that_was_not_measured_to_its_end_has_no_energy():
    table = gpus(gpu("a", "0", [(0, 0, None), (3.5, 350, None)]))
    assert [(one.epoch, one.energy_j) for one in energy_of_epochs(table, EPOCHS)] == [(0, 200), (1, None)]
    assert energy_of_epochs(gpus(), EPOCHS) == []


def log(host: str, marks: list[int], end: int | None) -> EventLog:
    header = EventsHeader.model_validate({"schema": "allpull.events/1.1", "rank": 0, "host": host, "budget": 1})
    epochs = tuple(EpochMark(kind="epoch", epoch=number, step=0, t_ns=at) for number, at in enumerate(marks))
    nothing: dict[str, Any] = dict.fromkeys(
        ("metrics", "spans", "clocks", "exceptions", "thinned", "switched_off", "restarted"), ()
    )
    last = None if end is None else End(kind="end", steps=1, t_ns=end)
    return EventLog(header=header, epochs=epochs, end=last, cut_off=False, damaged=0, **nothing)


def test_an_epoch_lasts_from_its_first_rank_to_its_last():
    events = {0: log("a", [10, 20], 30), 1: log("a", [11, 22], 31), 2: log("b", [500], None), 3: log("c", [], 9)}
    assert epoch_spans(events).rows() == [("a", 0, 10, 22), ("a", 1, 20, 31)]
