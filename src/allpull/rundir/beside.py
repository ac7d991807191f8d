"""Read what stands beside the steps: the events of each rank and the counters of each host, line by line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic import ValidationError

from allpull.errors import RunDirError
from allpull.rundir import bounded, layout
from allpull.rundir.lines import Lines, damage, read_lines, value_of
from allpull.schema.base import tag
from allpull.schema.counters import CounterSample, CountersHeader, RankCounters
from allpull.schema.events import (
    EVENT,
    ClockPair,
    End,
    EpochMark,
    Event,
    EventsHeader,
    Metric,
    Raised,
    Restarted,
    Span,
    SwitchedOff,
    Thinned,
)

COUNTERS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "rank": pl.Int64(),
    "t_ns": pl.Int64(),
    **dict.fromkeys(RankCounters.model_fields, pl.Int64()),
}
"""Columns of ``RunData.counters``: one row for each sample and rank; what grows is cumulative."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersFile:
    """The counters of one host: rows with the columns of ``COUNTERS_SCHEMA``."""

    header: CountersHeader
    rows: list[dict[str, Any]]
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
    )


def read_counters(root: Path, relative: str, ranks: int, *, skip_damaged: bool) -> CountersFile | None:
    """The counters file ``relative`` of a run of ``ranks`` ranks; None where not even a header is whole.

    Raises:
        RunDirError: the file cannot be read, or a line is damaged and ``skip_damaged`` is off. Damaged is a line
            that is no sample, goes back in time, or speaks of a rank that the run does not have.
    """
    lines = read_lines(root, relative, CountersHeader, "counters")
    if lines is None:
        return None
    rows: list[dict[str, Any]] = []
    damaged = 0
    last_ns: int | None = None
    for number, line in lines.numbered():
        try:
            sample = _sample(value_of(line), ranks, last_ns)
        except ValueError as fault:
            damaged += _one_damaged(lines, number, fault, skip_damaged=skip_damaged)
            continue
        last_ns = sample.t_ns
        for rank, counters in sample.ranks.items():
            row = {"host": lines.header.host, "rank": int(rank), "t_ns": sample.t_ns}
            rows.append({**row, **counters.model_dump()})
    return CountersFile(header=lines.header, rows=rows, cut_off=lines.cut_off, damaged=damaged)


def _one_damaged(lines: Lines[Any], number: int, fault: ValueError, *, skip_damaged: bool) -> int:
    """One, or the error if damaged lines are not to be skipped."""
    if not skip_damaged:
        shown = bounded.faults(fault) if isinstance(fault, ValidationError) else fault
        raise damage(lines.where, number, shown) from fault
    return 1


def _event(value: dict[str, Any], *, is_newer: bool) -> Event | None:
    try:
        return EVENT.validate_python(value, strict=True)
    except ValidationError as error:
        if is_newer and error.errors()[0]["type"] == "union_tag_invalid":
            return None
        raise


def _sample(value: dict[str, Any], ranks: int, last_ns: int | None) -> CounterSample:
    sample = CounterSample.model_validate(value, strict=True)
    if last_ns is not None and sample.t_ns < last_ns:
        raise ValueError(f"t_ns is {sample.t_ns}, before that of the sample before, {last_ns}")
    for rank in sample.ranks:
        if not _RANK.fullmatch(rank) or int(rank) >= ranks:
            raise ValueError(f"ranks has {rank[:40]!r}, expected 0 to {ranks - 1}")
    return sample


def _of(kind: type[Kind], events: list[Event]) -> tuple[Kind, ...]:
    return tuple(event for event in events if isinstance(event, kind))
