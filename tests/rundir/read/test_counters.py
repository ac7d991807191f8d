"""Counters read column by column are what they are line by line, and damage found in one is found in the other."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import RunDirError
from allpull.rundir.read import counters
from allpull.rundir.read.lines import Lines
from allpull.schema.base import tag
from allpull.schema.counters import CountersHeader

HEADER = CountersHeader.model_validate(
    {"schema": tag("counters"), "host": "here", "clock": {"monotonic_ns": 0, "realtime_ns": 0}, "interval_ns": 1}
)
RANKS = 4

odd = st.sampled_from([None, True, 1.5, -1, "1", [], {}, 2**62 + 1, 2**63 - 1, -(2**63)])
few = st.integers(0, 9)
count = st.none() | st.integers(0, 2**40)
rank = st.fixed_dictionaries({"processes": few}, optional={"cpu_ns": count, "read_bytes": count, "x": odd})
nic = st.fixed_dictionaries({"received_bytes": few, "sent_bytes": few})
link = st.fixed_dictionaries(
    {
        "local": st.text(max_size=3),
        **dict.fromkeys(("sent_bytes", "busy_ns", "retransmits", "rtt_ns"), st.integers(0, 9)),
    }
)
gpu = st.fixed_dictionaries(
    {},
    optional={
        "busy_share": st.none() | st.floats(0, 1) | st.integers(0, 1),
        "power_w": st.floats(0, 9),
        "clock_hz": count,
    },
)
ping = st.lists(st.integers(0, 9), min_size=8, max_size=8).map(lambda ping: [0, *ping[1:3], 9, *ping[4:]])
NAMES = {"ranks": (st.sampled_from("0123"), rank), "nics": (st.text(max_size=3), nic)}
NAMES |= {"links": (st.text(max_size=3), link), "gpus": (st.text(max_size=3), gpu)}
sample = st.fixed_dictionaries(
    {"t_ns": st.integers(0, 99), "against": st.just("there")},
    optional={
        "cpu_ns": count,
        "load_1min": st.none() | st.floats(0, 9),
        "pings": st.lists(ping.filter(lambda ping: ping[1] <= ping[2]), max_size=2),
        **{name: st.dictionaries(*parts, max_size=2) for name, parts in NAMES.items()},
    },
)
samples = st.lists(sample, max_size=4).map(lambda found: sorted(found, key=lambda one: one["t_ns"]))


def lines(found: list[Any]) -> Lines[CountersHeader]:
    body = "".join(json.dumps(one) + "\n" for one in found).encode()
    return Lines(where="counters/here.jsonl", header=HEADER, body=body, cut_off=False)


def read_both(found: list[Any]) -> bool:
    """Whether ``found`` is sound; both ways of reading agree on it, and on what it holds."""
    columns = counters._columns([lines(found)], RANKS)
    try:
        tables, _ = counters._one_by_one(lines(found), RANKS, skip_damaged=False)
    except RunDirError:
        assert columns is None
        return False
    assert columns is not None
    for name, table in tables.items():
        if name in columns or not table.is_empty():
            assert columns[name].equals(table), name
            assert columns[name].schema == table.schema, name
    return True


@settings(max_examples=100, deadline=None)
@given(found=samples)
def test_sound_samples_are_read_by_columns(found: list[dict[str, Any]]) -> None:
    assert read_both(found)


@settings(max_examples=50, deadline=None)
@given(files=st.lists(samples, min_size=1, max_size=3))
def test_files_that_are_read_together_have_the_tables_of_each(files: list[list[dict[str, Any]]]) -> None:
    together = counters._columns([lines(found) for found in files], RANKS)
    each = [counters._columns([lines(found)], RANKS) or {} for found in files]
    assert together is not None
    for name, schema in counters.SCHEMAS.items():
        none = pl.DataFrame(schema=schema)
        assert together.get(name, none).equals(pl.concat([none, *(one.get(name, none) for one in each)])), name


@settings(max_examples=200, deadline=None)
@given(found=samples.filter(len), value=odd, data=st.data())
def test_a_changed_value_is_sound_in_both_or_in_none(
    found: list[dict[str, Any]], value: Any, data: st.DataObject
) -> None:
    place: Any = data.draw(st.sampled_from(found))
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = value
    read_both(found)


@pytest.mark.parametrize(
    "change", [{"ranks": {"4": {"processes": 1}}}, {"ranks": {"00": {"processes": 1}}}, {"t_ns": 1}]
)
def test_what_no_value_alone_shows_is_damage_in_both(change: dict[str, Any]) -> None:
    assert not read_both([{"t_ns": 5}, {"t_ns": 5, **change}])
