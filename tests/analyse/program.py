"""Programs of several ranks, simulated moment by moment, and the records that observation would leave of them.

Ranks are generators that work, meet, say that a bucket is ready and wait for the reduction; a clock in whole ns runs
through what happens next. It shares nothing with ``analyse``: no max, no sum over buckets, only who waits for what.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from allpull.rundir.read import buckets as ready
from allpull.rundir.read import collectives
from allpull.rundir.read.counters import COUNTERS_SCHEMA
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.rundir.read.steps import SCHEMA
from allpull.schema.base import tag
from allpull.schema.events import Buckets, CollectiveKind, EventsHeader
from allpull.schema.run import RunRecord
from allpull.schema.steps import StepsHeader

MS = 1_000_000
BEFORE = ("evaluation", "checkpoint", "pause", "input", "copy")
"""What a rank does before forward; ``pause`` is in no phase, as a user's own logging would be."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Program:
    """What ranks do, in ms; every value broadcasts to (steps, ranks).

    ``work``: phases of a record, and ``pause`` (before forward) or ``late_pause`` (between forward and backward).
    ``bucket_ms``: how long each bucket takes, (buckets,) or (steps, buckets); it is ready after as much of backward as
    ``parts`` says. ``meet``: all ranks meet in an all-reduce or barrier of that name before forward, which
    takes ``meet_ms``; ``alone``: steps in which rank 0 evaluates, and all meet after it in a barrier.
    """

    ranks: int = 4
    steps: int = 12
    work: Mapping[str, ArrayLike] = field(default_factory=dict)
    bucket_ms: ArrayLike = (2.0, 3.0, 1.0)
    parts: Sequence[float] = ()
    tail_ms: ArrayLike = 0.0
    meet: str | None = None
    meet_ms: float = 0.3
    barrier_after: tuple[int, ...] = ()
    warmup: int = 0
    begin_ms: ArrayLike = 0.0
    base_ns: int = 10**12
    sizes: Sequence[int] | None = None
    reduces: bool = True

    def of(self, name: str) -> np.ndarray:
        """Whole ns of one kind of work, shape (steps, ranks)."""
        usual = {"forward": 20.0, "backward": 40.0, "optimizer": 5.0, "input": 1.0}
        value = np.asarray(self.work.get(name, usual.get(name, 0.0)), dtype=np.float64)
        return np.round(np.broadcast_to(value, (self.steps, self.ranks)) * MS).astype(np.int64)

    @property
    def lane_ns(self) -> np.ndarray:
        """How long buckets take, shape (steps, buckets)."""
        each = np.atleast_1d(np.asarray(self.bucket_ms, dtype=np.float64))
        return np.round(np.broadcast_to(each, (self.steps, each.shape[-1])) * MS).astype(np.int64)

    @property
    def buckets(self) -> int:
        """How many there are."""
        return int(self.lane_ns.shape[1])


class _Run:
    """One execution: the agenda, who stands at which meeting, and the lane of buckets."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.now = 0
        self.agenda: list[tuple[int, int, Any]] = []
        self.filed = 0
        self.standing: dict[Any, list[Any]] = {}
        self.missing: dict[tuple[int, int], int] = {}
        self.next_bucket, self.lane_step, self.lane_busy = 0, 0, False
        self.reduced: dict[int, int] = {}
        self.blocked: dict[int, list[Any]] = {}
        self.rows: list[Row] = []
        self.calls: list[tuple[int, ...]] = []

    def run(self) -> None:
        program = self.program
        begins = np.round(np.broadcast_to(np.asarray(program.begin_ms, dtype=float), (program.ranks,)) * MS)
        for rank in range(program.ranks):
            self._at(int(begins[rank]), self._rank(rank))
        while self.agenda:
            self.now, _, what = heapq.heappop(self.agenda)
            if what == "lane":
                self._bucket_over()
            else:
                self._go(what)

    def _at(self, moment: int, what: Any) -> None:
        heapq.heappush(self.agenda, (moment, self.filed, what))
        self.filed += 1

    def _go(self, rank: Any) -> None:
        for kind, value in rank:
            if kind == "work":
                if value == 0:
                    continue
                self._at(self.now + value, rank)
                return
            if kind == "ready":
                self.missing[value] = self.missing.get(value, self.program.ranks) - 1
                self._start_bucket()
            elif kind == "meet":
                standing = self.standing.setdefault(value, [])
                standing.append(rank)
                if len(standing) == self.program.ranks:
                    for one in standing:
                        self._at(self.now + round(self.program.meet_ms * MS), one)
                return
            elif kind == "reduced" and value not in self.reduced:
                self.blocked.setdefault(value, []).append(rank)
                return

    def _start_bucket(self) -> None:
        if self.lane_busy or self.missing.get((self.lane_step, self.next_bucket)) != 0:
            return
        self.lane_busy = True
        self._at(self.now + int(self.program.lane_ns[self.lane_step, self.next_bucket]), "lane")

    def _bucket_over(self) -> None:
        self.lane_busy = False
        self.next_bucket += 1
        if self.next_bucket == self.program.buckets:
            self.reduced[self.lane_step] = self.now
            for rank in self.blocked.pop(self.lane_step, []):
                self._at(self.now, rank)
            self.next_bucket, self.lane_step = 0, self.lane_step + 1
        self._start_bucket()

    def _call(self, rank: int, step: int, kind: int, seq: int) -> Iterator[tuple[str, Any]]:
        begin = self.now
        yield "meet", (kind, seq)
        self.calls.append((rank, step, kind, seq, begin, self.now - begin, self.now))

    def _rank(self, rank: int) -> Iterator[tuple[str, Any]]:
        program = self.program
        parts = program.parts or [1 / program.buckets] * program.buckets
        barriers = 0
        tails = np.round(np.broadcast_to(np.asarray(program.tail_ms, dtype=float), (program.steps, program.ranks)) * MS)
        for step in range(program.steps):
            begin, called = self.now, len(self.calls)
            row: Row = {"rank": rank, "step": step, "epoch": 0, "samples": 32, "begin_ns": begin}
            for name in BEFORE:
                yield "work", int(program.of(name)[step, rank])
                if name == "pause" and step in program.barrier_after:
                    yield from self._call(rank, step, 1, barriers)
                    barriers += 1
            if program.meet:
                yield from self._call(rank, step, 0, step)
            yield "work", int(program.of("forward")[step, rank])
            yield "work", int(program.of("late_pause")[step, rank])
            backward, moments = self.now, []
            whole = int(program.of("backward")[step, rank])
            for bucket, part in enumerate(parts):
                yield "work", round(whole * part) if bucket < len(parts) - 1 else whole - (self.now - backward)
                moments.append(self.now)
                if program.reduces:
                    yield "ready", (step, bucket)
            if program.reduces:
                yield "reduced", step
                yield "work", int(tails[step, rank])
                row |= {"arrival_ns": moments[-1], "done_ns": self.now, "ready": moments}
            row["backward_ns"] = self.now - backward
            for name in ("optimizer", "tail_pause"):
                yield "work", int(program.of(name)[step, rank])
            spans = {f"{name}_ns": int(program.of(name)[step, rank]) for name in SPANS}
            mine = [one for one in self.calls[called:] if one[0] == rank and one[1] == step]
            self.rows.append(row | spans | {"end_ns": self.now, "collective_ns": sum(one[5] for one in mine)})


SPANS = ("evaluation", "checkpoint", "input", "copy", "forward", "optimizer")


def records(program: Program, **changes: Any) -> RunData:
    """The run that ``program`` leaves; changes to it follow as keywords."""
    done = _Run(program)
    done.run()
    base = program.base_ns
    rows = []
    for row in sorted(done.rows, key=lambda row: (row["rank"], row["step"])):
        tags = {"warmup": row["step"] < program.warmup, "evaluation": row["evaluation_ns"] > 0}
        tags["checkpoint"] = row["checkpoint_ns"] > 0
        shifted = {name: row[name] + base for name in MOMENTS if name in row}
        rows.append(row | shifted | {f"tag_{name}": value for name, value in tags.items()})
    steps = pl.DataFrame([{name: row.get(name) for name in SCHEMA} for row in rows], schema=SCHEMA)
    steps = steps.with_columns(pl.col(name).fill_null(value=False) for name in SCHEMA if name.startswith("tag_"))
    moments = [(row["rank"], row["step"], [at + base for at in row["ready"]]) for row in rows if row.get("ready")]
    calls = [(*one[:4], one[4] + base, one[5], one[6] + base) for one in sorted(done.calls)]
    run = RunData(
        directory=Path("runs/program"),
        record=RunRecord.model_validate(RUN | {"ranks": program.ranks}),
        hosts=(),
        steps=steps,
        headers={rank: header(rank, program.ranks) for rank in range(program.ranks)},
        events={rank: log(rank, program) for rank in range(program.ranks)},
        counters=pl.DataFrame(schema=COUNTERS_SCHEMA),
        gaps=(),
        collectives=pl.DataFrame(calls, schema=collectives.SCHEMA, orient="row"),
        ready=pl.DataFrame(moments, schema=ready.SCHEMA, orient="row"),
    )
    return replace(run, **changes)


MOMENTS = ("begin_ns", "end_ns", "arrival_ns", "done_ns")
RUN = {
    "schema": tag("run"),
    "id": "program",
    "name": "program",
    "kind": "run",
    "created_utc": "2026-01-01T00:00:00Z",
    "status": "completed",
    "command": ["allpull"],
    "spec": {},
    "launcher": "local",
    "versions": {"torch": "2.4"},
}


def header(rank: int, ranks: int, **changes: Any) -> StepsHeader:
    """The header of one rank's records: all ranks are of one boot of one host unless told otherwise."""
    who = {"schema": tag("steps"), "rank": rank, "local_rank": rank, "ranks": ranks, "host": "here", "pid": 1}
    rest = {"boot_id": "boot", "clock": {"monotonic_ns": 0, "realtime_ns": 0}, "boundary": "marks", "budget": 1}
    return StepsHeader.model_validate({**who, **rest, **changes})


def log(rank: int, program: Program, **kinds: Any) -> EventLog:
    """The events of one rank: what its collectives are, and how large its buckets."""
    made = EventsHeader.model_validate({"schema": tag("events"), "rank": rank, "host": "here", "budget": 1})
    group = {"kind": "collective_kind", "size_bytes": 8, "dtype": "float32", "group": "0", "t_ns": 0}
    group["group_ranks"] = program.ranks
    called = [{"id": 0, "op": program.meet or "all_reduce", "inside": "forward"}, {"id": 1, "op": "barrier"}]
    sizes = program.sizes or [int(ns) for ns in program.lane_ns[0]]
    nothing = dict.fromkeys(
        ("metrics", "spans", "epochs", "clocks", "exceptions", "thinned", "switched_off", "restarted"), ()
    )
    found: dict[str, Any] = {
        **nothing,
        "collective_kinds": tuple(CollectiveKind.model_validate({**group, **one}) for one in called),
        "buckets": (Buckets(kind="buckets", step=0, sizes_bytes=list(sizes), t_ns=0),),
    }
    return EventLog(header=made, end=None, cut_off=False, damaged=0, **{**found, **kinds})


def late(program: Program, rank: int, by_ms: float, usual: float = 0.0) -> np.ndarray:
    """``usual`` on all ranks and ``by_ms`` more on one."""
    return usual + by_ms * (np.arange(program.ranks) == rank) * np.ones((program.steps, 1))
