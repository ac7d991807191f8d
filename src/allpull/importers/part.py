"""Read one file into a part of a run: the steps and collectives of one rank, without the events themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allpull.importers.flight_recorder import dump as flight_recorder
from allpull.importers.kineto import calls as calls_of_trace
from allpull.importers.kineto import steps as steps_of
from allpull.importers.kineto.calls import Call
from allpull.importers.kineto.measure import Step, measure
from allpull.importers.kineto.step_parts import parts_of
from allpull.importers.kineto.steps import Token
from allpull.importers.sources import Kind, Source, unpacked
from allpull.schema.steps import PROFILER
from allpull.traces.kineto import read_trace

SAME_CALL_NS = 2_000_000  # between a call's stamps in a trace and in the flight recorder, on a slow host


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The content of ``source``: the rank that recorded it, its steps in order, and all its collectives.

    ``rank`` is what the file states of itself, and ``caller`` the rank that made its collectives. ``boundary`` says
    what delimits the steps; None: nothing does. ``gaps`` are sentences.
    """

    source: Source
    rank: int | None
    ranks: int | None
    host: str | None
    pid: int | None
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    boundary: str | None
    sources: tuple[str, ...]
    pattern: tuple[Token, ...] | None = None
    caller: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()

    @property
    def stated_ranks(self) -> int:
        """How many ranks the job has, by itself or by its largest group; 0: unknown."""
        return self.ranks or max((call.use.group_ranks for call in self.calls), default=0)

    @property
    def is_dump(self) -> bool:
        """Whether it is a dump of the flight recorder."""
        return self.source.kind != "trace"


def read_part(source: Source, pattern: Sequence[Token] | None = None) -> Part:
    """Read the file ``source``; ``pattern``: the collectives of a step, from another rank.

    Raises:
        BadInput: it cannot be opened.
    """
    return READERS[source.kind](source, pattern)


def sized(part: Part, sizes: Mapping[str, int]) -> Part:
    """``part`` with group sizes from ``sizes`` where it states none."""
    with_size = {
        call: replace(call, use=replace(call.use, group_ranks=sizes[call.use.group]))
        for call in part.calls
        if not call.use.group_ranks
    }
    return _with_calls(part, with_size) if with_size else part


def with_numbers(part: Part, dump: Part) -> Part:
    """``part`` with the sequence numbers of its calls from a flight-recorder dump of the same rank."""
    by_family: dict[str, list[Call]] = {}
    for call in dump.calls:
        by_family.setdefault(call.use.family, []).append(call)
    positions: Counter[str] = Counter()
    numbered: dict[Call, Call] = {}
    for call in part.calls:
        dumped = by_family.get(call.use.family, [])
        position = positions[call.use.family]
        while position < len(dumped) and dumped[position].called_ns < call.called_ns - SAME_CALL_NS:
            position += 1
        if position < len(dumped) and dumped[position].called_ns <= call.called_ns + SAME_CALL_NS:
            if call.seq is None:
                use = replace(call.use, group=dumped[position].use.group)
                numbered[call] = replace(call, seq=dumped[position].seq, use=use)
            position += 1
        positions[call.use.family] = position
    return _with_calls(part, numbered)


def _with_calls(part: Part, new: Mapping[Call, Call]) -> Part:
    """``part`` with some of its calls replaced by others of the same moments."""
    at = {(call.called_ns, call.arrived_ns): other for call, other in new.items()}
    calls = tuple(new.get(call, call) for call in part.calls)
    return replace(part, calls=calls, steps=tuple(_step_with_calls(step, at) for step in part.steps))


def _step_with_calls(step: Step, at: Mapping[tuple[int, int], Call]) -> Step:
    reduction, called = step.reduction, step.called
    return replace(
        step,
        calls=tuple((_described(call, at), inside) for call, inside in step.calls),
        reduction=reduction and replace(reduction, calls=tuple(_described(call, at) for call in reduction.calls)),
        called=called and _step_with_calls(called, at),
    )


def _described(call: Call, at: Mapping[tuple[int, int], Call]) -> Call:
    other = at.get((call.called_ns, call.arrived_ns), call)
    return replace(call, use=other.use, seq=other.seq)


def _of_trace(source: Source, pattern: Sequence[Token] | None) -> Part:
    with unpacked(source) as file:
        trace = read_trace(file)
    collectives = calls_of_trace.calls_of(trace)
    parts = parts_of(trace, collectives.calls)
    pattern = pattern or steps_of.pattern_of(collectives.calls)
    cuts = steps_of.cut(trace, parts, collectives.calls, pattern)
    steps = measure(trace, parts, collectives.calls, cuts.steps) if cuts else []
    gaps = []
    if trace.fault:
        gaps.append(f"{source.shown}: read only in part: {trace.fault}; steps after that point may be missing")
    if trace.strange:
        gaps.append(f"{source.shown}: {trace.strange:,} events with impossible times or without a name left out")
    if collectives.unknown:
        gaps.append(f"{source.shown}: {collectives.unknown:,} collectives of unknown operation left out")
    if not trace.events:
        gaps.append(f"{source.shown}: it contains no torch.profiler event")
    return Part(
        source=source,
        rank=trace.rank,
        caller=next(iter(trace.callers)) if len(trace.callers) == 1 else None,
        ranks=trace.ranks,
        host=trace.host,
        pid=trace.pid,
        steps=tuple(steps),
        calls=collectives.calls,
        boundary=cuts.boundary if cuts else None,
        sources=(PROFILER, *parts.sources),
        pattern=tuple(pattern) if pattern else None,
        versions=trace.versions,
        gaps=tuple(gaps),
    )


def _of_dump(source: Source, pattern: Sequence[Token] | None) -> Part:
    dump = flight_recorder.read_dump(source)
    pattern = pattern or steps_of.pattern_of(dump.calls)
    cuts = steps_of.by_calls(dump.calls, pattern)
    gaps = []
    if dump.fault:
        gaps.append(f"{source.shown}: read only in part: {dump.fault}")
    if dump.strange:
        gaps.append(f"{source.shown}: {dump.strange:,} entries left out: not a collective, or implausible")
    return Part(
        source=source,
        rank=dump.rank,
        ranks=max((call.use.group_ranks for call in dump.calls), default=0) or None,
        host=dump.host,
        pid=None,
        steps=tuple(_bare(cut, dump.calls) for cut in cuts.steps) if cuts else (),
        calls=tuple(dump.calls),
        boundary=cuts.boundary if cuts else None,
        sources=("flight recorder",),
        pattern=tuple(pattern) if pattern else None,
        gaps=tuple(gaps),
    )


def _bare(cut: steps_of.Cut, calls: Sequence[Call]) -> Step:
    """A step of which only the calls are known."""
    mine = tuple((call, None) for call in calls if cut.begin_ns <= call.called_ns < cut.end_ns)
    return Step(
        number=None,
        begin_ns=cut.begin_ns,
        end_ns=cut.end_ns,
        spans_ns={},
        passes=None,
        reduction=None,
        device={},
        calls=mine,
    )


READERS: Mapping[Kind, Callable[[Source, Sequence[Token] | None], Part]] = {
    "trace": _of_trace,
    "dump": _of_dump,
    "pickle": _of_dump,
}
"""The reader of each kind of file; ``sources`` determines the kind."""
