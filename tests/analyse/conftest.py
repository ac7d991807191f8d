"""Step records made from plain numbers, without a disk: milliseconds in, the columns of a run out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from allpull.rundir.read import collectives
from allpull.rundir.read.counters import COUNTERS_SCHEMA
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.rundir.read.steps import SCHEMA
from allpull.schema.base import tag
from allpull.schema.events import CollectiveKind, EventsHeader
from allpull.schema.run import RunRecord
from allpull.schema.steps import StepsHeader

Table = Sequence[Sequence[float | None]]
"""Milliseconds by step and rank."""


@pytest.fixture
def make_records() -> Callable[..., pl.DataFrame]:
    """``make_records(wall=[[100, 100]], forward=[[30, 30]], …)``: each a table of steps × ranks, in ms.

    ``arrival`` and ``done`` count from the begin of the rank's own step; ``begin`` from the run's. Steps follow each
    other unless ``begin`` is given. ``tags`` maps (step, rank) to tags; ``samples`` is a table of counts.
    """

    def make(
        wall: Table,
        *,
        begin: Table | None = None,
        samples: Table | None = None,
        tags: Mapping[tuple[int, int], Sequence[str]] | None = None,
        base_ns: int = 10**12,
        **spans: Table,
    ) -> pl.DataFrame:
        ranks = len(wall[0])
        starts = np.cumsum([[0.0] * ranks, *wall[:-1]], axis=0) if begin is None else np.array(begin, dtype=float)
        rows = []
        for rank in range(ranks):
            for step in range(len(wall)):
                begin_ns = base_ns + round(float(starts[step][rank]) * 1e6)
                row: dict[str, Any] = {
                    "rank": rank,
                    "step": step,
                    "epoch": 0,
                    "begin_ns": begin_ns,
                    "end_ns": begin_ns + round(wall[step][rank] * 1e6),
                    "samples": 64 if samples is None else samples[step][rank],
                    **{f"tag_{name}": True for name in (tags or {}).get((step, rank), ())},
                }
                for name, table in spans.items():
                    value = table[step][rank]
                    offset = begin_ns if name in {"arrival", "done"} else 0
                    row[f"{name}_ns"] = None if value is None else round(value * 1e6) + offset
                rows.append(row)
        frame = pl.DataFrame(rows, schema=SCHEMA)
        return frame.with_columns(pl.col(name).fill_null(value=False) for name in SCHEMA if name.startswith("tag_"))

    return make


@pytest.fixture
def make_data() -> Callable[..., RunData]:
    """``make_data(records, ranks=2)``: a run that holds them; changes to its run.json follow as keywords."""

    def make(records: pl.DataFrame, ranks: int, **changes: Any) -> RunData:
        names = ("events", "counters", "hosts", "directory", "collectives", "pings", "gpus")
        extra = {name: changes.pop(name) for name in names if name in changes}
        tables = {name: extra[name] for name in ("collectives", "pings", "gpus") if name in extra}
        boots = changes.pop("boots", ["boot"] * ranks)
        record = {
            "schema": tag("run"),
            "id": f"run-{ranks}",
            "name": "made",
            "kind": "train",
            "created_utc": "2026-01-01T00:00:00Z",
            "status": "completed",
            "command": ["allpull"],
            "spec": {"model": {"name": "resnet8", "width": 16}, "data": {"name": "digits"}},
            "launcher": "local",
            "ranks": ranks,
            "threads_per_rank": 1,
            "versions": {"torch": "2.4"},
            **changes,
        }
        return RunData(
            directory=extra.get("directory", Path("runs/made")),
            record=RunRecord.model_validate(record),
            hosts=extra.get("hosts", ()),
            steps=records,
            headers={rank: header(rank, ranks, boot) for rank, boot in enumerate(boots)},
            events=extra.get("events", {}),
            counters=extra.get("counters", pl.DataFrame(schema=COUNTERS_SCHEMA)),
            gaps=(),
            **tables,
        )

    return make


def header(rank: int, ranks: int, boot: str | None) -> StepsHeader:
    clock = {"monotonic_ns": 0, "realtime_ns": 0}
    who = {"schema": tag("steps"), "rank": rank, "local_rank": rank, "ranks": ranks, "host": f"host-{boot}", "pid": 1}
    return StepsHeader.model_validate({**who, "boot_id": boot, "clock": clock, "boundary": "marks", "budget": 1})


@pytest.fixture
def make_log() -> Callable[..., EventLog]:
    """``make_log(metrics=[…], epochs=[…])``: the events of one rank."""

    def make(rank: int = 0, **kinds: Any) -> EventLog:
        made = EventsHeader.model_validate({"schema": tag("events"), "rank": rank, "host": "here", "budget": 1})
        empty: dict[str, Any] = dict.fromkeys(
            ("metrics", "spans", "epochs", "clocks", "exceptions", "thinned", "switched_off", "restarted"), ()
        )
        return EventLog(header=made, end=None, cut_off=False, damaged=0, **{**empty, **kinds})

    return make


@pytest.fixture
def make_calls() -> Callable[..., pl.DataFrame]:
    """``make_calls([(rank, step, kind, seq, begin, blocked, end), …])``: calls of collectives, their times in ms."""

    def make(rows: Sequence[Sequence[float | None]], base_ns: int = 10**12) -> pl.DataFrame:
        def ns(ms: float | None, start_ns: int) -> int | None:
            return None if ms is None else round(ms * 1e6) + start_ns

        made = [
            (rank, step, kind, seq, ns(begin, base_ns), ns(blocked, 0), ns(end, base_ns))
            for rank, step, kind, seq, begin, blocked, end in rows
        ]
        return pl.DataFrame(made, schema=collectives.SCHEMA, orient="row").sort("rank", "step", maintain_order=True)

    return make


@pytest.fixture
def make_kind() -> Callable[..., CollectiveKind]:
    """``make_kind("all_reduce", ranks=4, id=0, …)``: a kind of collective, of 1 MB of float32 unless told otherwise."""

    def make(op: str, ranks: int, **changes: Any) -> CollectiveKind:
        usual = {"kind": "collective_kind", "id": 0, "size_bytes": 10**6, "dtype": "float32", "group": "0", "t_ns": 0}
        return CollectiveKind.model_validate({**usual, "op": op, "group_ranks": ranks, **changes})

    return make
