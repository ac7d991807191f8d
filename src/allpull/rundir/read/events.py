"""Read the events of a rank, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import buckets, collectives, reductions
from allpull.rundir.read.lines import one_damaged, read_lines, value_of
from allpull.schema.base import tag
from allpull.schema.digest_events import FirstBatches, Replica, ReplicaTensors
from allpull.schema.events import (
    EVENT,
    Boundary,
    Buckets,
    ClockPair,
    CollectiveKind,
    DataParallel,
    DeviceStep,
    End,
    EpochMark,
    Event,
    EventsHeader,
    InputShapes,
    LoaderWork,
    Locality,
    Metric,
    NcclLog,
    ProcessGroup,
    Raised,
    Remark,
    Rest,
    Restarted,
    Span,
    Stall,
    SwitchedOff,
    Thinned,
    TraceWindow,
    Watching,
)

Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """The events of one rank by kind, in the order of writing; ``end`` is None where the rank was killed."""

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
    after_steps: tuple[Rest, ...] = ()
    process_groups: tuple[ProcessGroup, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    stalls: tuple[Stall, ...] = ()
    loaders: tuple[LoaderWork, ...] = ()
    data_parallel: tuple[DataParallel, ...] = ()
    nccl: tuple[NcclLog, ...] = ()
    localities: tuple[Locality, ...] = ()
    input_shapes: tuple[InputShapes, ...] = ()
    first_batches: tuple[FirstBatches, ...] = ()
    replica_tensors: tuple[ReplicaTensors, ...] = ()
    replicas: tuple[Replica, ...] = ()


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
    events: dict[type, list[Any]] = {}
    damaged = 0
    for number, line in lines.numbered():
        try:
            event = _event(value_of(line), is_newer=lines.header.schema_ != tag("events"))
        except ValueError as fault:
            damaged += one_damaged(lines, number, fault, skip_damaged=skip_damaged)
        else:
            if event:
                events.setdefault(type(event), []).append(event)
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
        after_steps=_of(Rest, events),
        process_groups=_of(ProcessGroup, events),
        boundaries=_of(Boundary, events),
        stalls=_of(Stall, events),
        loaders=_of(LoaderWork, events),
        data_parallel=_of(DataParallel, events),
        nccl=_of(NcclLog, events),
        localities=_of(Locality, events),
        input_shapes=_of(InputShapes, events),
        first_batches=_of(FirstBatches, events),
        replica_tensors=_of(ReplicaTensors, events),
        replicas=_of(Replica, events),
    )


def _event(value: dict[str, Any], *, is_newer: bool) -> Event | None:
    try:
        event = EVENT.validate_python(value, strict=True)
    except ValidationError as error:
        if is_newer and error.errors()[0]["type"] == "union_tag_invalid":
            return None
        raise
    if isinstance(event, (Rest, DeviceStep)):
        collectives.check(event.collectives)
    if isinstance(event, DeviceStep):
        buckets.check(event.ready_ns)
        reductions.check(event.reductions)
    return event


def _of(kind: type[Kind], events: Mapping[type, list[Any]]) -> tuple[Kind, ...]:
    return tuple(events.get(kind, ()))
