"""Read what stands beside the steps: the events of each rank and the counters of each host, line by line.

A sample of counters holds several kinds of things, so a counters file becomes several tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic import ValidationError

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.read import collectives
from allpull.rundir.read.lines import Lines, damage, read_lines, value_of
from allpull.schema.base import tag
from allpull.schema.counters import CounterSample, CountersHeader, LinkCounters, NicCounters, RankCounters
from allpull.schema.events import (
    EVENT,
    Buckets,
    ClockPair,
    CollectiveKind,
    DeviceStep,
    End,
    EpochMark,
    Event,
    EventsHeader,
    Metric,
    Raised,
    Remark,
    Rest,
    Restarted,
    Span,
    SwitchedOff,
    Thinned,
    TraceWindow,
    Watching,
)
from allpull.schema.probes import Ping

COUNTERS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "rank": pl.Int64(),
    "t_ns": pl.Int64(),
    **dict.fromkeys(RankCounters.model_fields, pl.Int64()),
}
"""Columns of ``RunData.counters``: one row for each sample and rank; what grows is cumulative."""

PING_MOMENTS = ("sent", "received", "answered", "back")
PINGS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "against": pl.String(),
    **{f"{moment}_ns": pl.Int64() for moment in PING_MOMENTS},
    **{f"{moment}_real_ns": pl.Int64() for moment in PING_MOMENTS},
}
"""Columns of ``RunData.pings``: one row a ping of ``host`` to ``against``. Sent and back are moments of the clocks of
``host``, received and answered of those of ``against``: the monotonic ones, then the real-time ones.
"""

GPUS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    "gpu": pl.String(),
    "busy_share": pl.Float64(),
    "memory_used_bytes": pl.Int64(),
    "clock_hz": pl.Int64(),
    "power_w": pl.Float64(),
    "energy_j": pl.Float64(),
    "temperature_c": pl.Float64(),
}
"""Columns of ``RunData.gpus``: one row for each sample and accelerator."""

NICS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    "nic": pl.String(),
    **dict.fromkeys(NicCounters.model_fields, pl.Int64()),
}
"""Columns of ``RunData.nics``: one row for each sample and network interface; bytes since boot."""

LINKS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    "peer": pl.String(),
    **{name: pl.String() if name == "local" else pl.Int64() for name in LinkCounters.model_fields},
}
"""Columns of ``RunData.links``: one row for each sample and other host; what grows is cumulative."""

MAX_NUMBER = 2**62  # of a moment: differences of two such still fit 64 bits
MAX_PINGS = 100_000  # of one sample; the sidecar sends a few hundred a minute

_RANK = re.compile(r"0|[1-9][0-9]{0,6}")

Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """What one rank wrote beside its steps, by kind, in the order of writing; ``end`` is None where it was killed."""

    header: EventsHeader
    metrics: tuple[Metric, ...]
    spans: tuple[Span, ...]
    epochs: tuple[EpochMark, ...]
    clocks: tuple[ClockPair, ...]
    exceptions: tuple[Raised, ...]
    thinned: tuple[Thinned, ...]
    switched_off: tuple[SwitchedOff, ...]
    restarted: tuple[Restarted, ...]
    end: End | None
    cut_off: bool
    damaged: int
    collective_kinds: tuple[CollectiveKind, ...] = ()
    remarks: tuple[Remark, ...] = ()
    buckets: tuple[Buckets, ...] = ()
    traces: tuple[TraceWindow, ...] = ()
    device_steps: tuple[DeviceStep, ...] = ()
    watching: tuple[Watching, ...] = ()
    rest: tuple[Rest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersFile:
    """The counters of one host: rows with the columns of ``COUNTERS_SCHEMA``, and of the four schemas beside it."""

    header: CountersHeader
    rows: list[dict[str, Any]]
    pings: list[dict[str, Any]]
    gpus: list[dict[str, Any]]
    nics: list[dict[str, Any]]
    links: list[dict[str, Any]]
    cut_off: bool
    damaged: int


def read_events(root: Path, rank: int, *, skip_damaged: bool) -> EventLog | None:
    """The events of ``rank`` in the resolved run directory ``root``; None where not even a header is whole.

    Kinds of events that a newer minor version added are left out.

    Raises:
        RunDirError: the file cannot be read, or a line is damaged and ``skip_damaged`` is off.
    """
    lines = read_lines(root, layout.events_file(rank), EventsHeader, "events")
    if lines is None:
        return None
    if lines.header.rank != rank:
        raise RunDirError(
            f"{lines.where}: its header says rank {lines.header.rank}",
            hint="the file was renamed: give it its own name",
        )
    events: list[Event] = []
    damaged = 0
    for number, line in lines.numbered():
        try:
            event = _event(value_of(line), is_newer=lines.header.schema_ != tag("events"))
        except ValueError as fault:
            damaged += _one_damaged(lines, number, fault, skip_damaged=skip_damaged)
        else:
            events += [event] if event else []
    ends = _of(End, events)
    return EventLog(
        header=lines.header,
        metrics=_of(Metric, events),
        spans=_of(Span, events),
        epochs=_of(EpochMark, events),
        clocks=_of(ClockPair, events),
        exceptions=_of(Raised, events),
        thinned=_of(Thinned, events),
        switched_off=_of(SwitchedOff, events),
        restarted=_of(Restarted, events),
        end=ends[-1] if ends else None,
        cut_off=lines.cut_off,
        damaged=damaged,
        collective_kinds=_of(CollectiveKind, events),
        remarks=_of(Remark, events),
        buckets=_of(Buckets, events),
        traces=_of(TraceWindow, events),
        device_steps=_of(DeviceStep, events),
        watching=_of(Watching, events),
        rest=_of(Rest, events),
    )


def read_counters(root: Path, relative: str, ranks: int, *, skip_damaged: bool) -> CountersFile | None:
    """The counters file ``relative`` of a run of ``ranks`` ranks; None where not even a header is whole.

    Raises:
        RunDirError: the file cannot be read, or a line is damaged and ``skip_damaged`` is off. Damaged is a line
            that is no sample, goes back in time, speaks of a rank that the run does not have, or holds a ping that
            was back before it was sent.
    """
    lines = read_lines(root, relative, CountersHeader, "counters")
    if lines is None:
        return None
    file = CountersFile(
        header=lines.header, rows=[], pings=[], gpus=[], nics=[], links=[], cut_off=lines.cut_off, damaged=0
    )
    damaged = 0
    last_ns: int | None = None
    for number, line in lines.numbered():
        try:
            sample = _sample(value_of(line), ranks, last_ns)
        except ValueError as fault:
            damaged += _one_damaged(lines, number, fault, skip_damaged=skip_damaged)
            continue
        last_ns = sample.t_ns
        _add(file, sample)
    return replace(file, damaged=damaged)


def _add(file: CountersFile, sample: CounterSample) -> None:
    """Put what ``sample`` holds into the tables of ``file``."""
    host, at = file.header.host, {"host": file.header.host, "t_ns": sample.t_ns}
    file.rows.extend({**at, "rank": int(rank), **of.model_dump()} for rank, of in sample.ranks.items())
    file.gpus.extend({**at, "gpu": name, **of.model_dump()} for name, of in sample.gpus.items())
    file.links.extend({**at, "peer": name, **of.model_dump()} for name, of in sample.links.items())
    file.nics.extend({**at, "nic": name, **of.model_dump()} for name, of in sample.nics.items())
    moments = list(PINGS_SCHEMA)[2:]
    file.pings.extend(
        {"host": host, "against": sample.against, **dict(zip(moments, ping, strict=True))} for ping in sample.pings
    )


def _one_damaged(lines: Lines[Any], number: int, fault: ValueError, *, skip_damaged: bool) -> int:
    """One, or the error if damaged lines are not to be skipped."""
    if not skip_damaged:
        shown = safe_open.faults(fault) if isinstance(fault, ValidationError) else fault
        raise damage(lines.where, number, shown) from fault
    return 1


def _event(value: dict[str, Any], *, is_newer: bool) -> Event | None:
    try:
        event = EVENT.validate_python(value, strict=True)
    except ValidationError as error:
        if is_newer and error.errors()[0]["type"] == "union_tag_invalid":
            return None
        raise
    if isinstance(event, Rest):
        collectives.check(event.collectives)
    return event


def _sample(value: dict[str, Any], ranks: int, last_ns: int | None) -> CounterSample:
    sample = CounterSample.model_validate(value, strict=True)
    if last_ns is not None and sample.t_ns < last_ns:
        raise ValueError(f"t_ns is {sample.t_ns}, before that of the sample before, {last_ns}")
    for rank in sample.ranks:
        if not _RANK.fullmatch(rank) or int(rank) >= ranks:
            raise ValueError(f"ranks has {rank[:40]!r}, expected 0 to {ranks - 1}")
    if sample.pings and sample.against is None:
        raise ValueError("pings against no host")
    if len(sample.pings) > MAX_PINGS:
        raise ValueError(f"{len(sample.pings):,} pings in one sample, more than {MAX_PINGS:,}")
    for ping in sample.pings:
        _check_ping(ping)
    return sample


def _check_ping(ping: Ping) -> None:
    sent, received, answered, back = ping[:4]
    if max(map(abs, ping)) > MAX_NUMBER:
        raise ValueError(f"a ping with a moment beyond {MAX_NUMBER}")
    if back < sent or answered < received:
        raise ValueError("a ping that was back before it was sent, or answered before it was received")


def _of(kind: type[Kind], events: list[Event]) -> tuple[Kind, ...]:
    return tuple(event for event in events if isinstance(event, kind))
