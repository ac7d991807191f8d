"""Measure each step of a trace: its phases on the host, its reduction of gradients, and what the device did meanwhile.

On the host, phases are disjoint: a moment that belongs to two parts counts towards the first of ``PARTS``, and time
blocked in a collective counts towards none. On a device each kernel belongs to the part in which the host launched it;
idle device time is input where the host was in its loader, and is not attributed otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.importers.kineto.calls import Call, blocked, disjoint
from allpull.importers.kineto.step_parts import Parts, Pass
from allpull.importers.kineto.steps import Cut
from allpull.traces.intervals import NONE, Stretches, Times, of, union
from allpull.traces.trace import UNKNOWN, Trace

PARTS = ("input", "optimizer", "evaluation", "checkpoint", "backward", "forward")
ON_DEVICE = ("forward", "backward", "optimizer", "evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """How the gradients of a step were reduced: moments in ns. Buckets are in the order in which they were queued.

    ``ready_ns`` of each bucket is when it and all before it were ready. ``sizes_bytes`` is None where a size is
    unknown; ``done_ns`` where an execution is missing.
    """

    calls: tuple[Call, ...]
    ready_ns: tuple[int, ...]
    sizes_bytes: tuple[int, ...] | None
    done_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one rank, in ns of its host's real-time clock.

    ``spans_ns`` are phases on the host, by the names of ``schema.steps.PHASES`` and "collective"; those that the trace
    does not show are absent. ``device`` holds fields of ``schema.events.DeviceStep``; empty: no device was profiled.
    ``calls`` are its collectives except those of ``reduction``, each with the phase in which it was called. ``called``
    is the same step if its reductions, of all passes, count as calls of the program; None: it has none.
    """

    number: int | None
    begin_ns: int
    end_ns: int
    spans_ns: dict[str, int]
    passes: int | None
    reduction: Reduction | None
    device: dict[str, int]
    calls: tuple[tuple[Call, str | None], ...]
    called: Step | None = None


def measure(trace: Trace, parts: Parts, calls: Sequence[Call], cuts: Sequence[Cut]) -> list[Step]:
    """The steps ``cuts`` of ``trace``."""
    other_calls = [call for call in calls if not call.is_reduction]
    at = np.array([call.called_ns for call in other_calls], dtype=np.int64)
    began = np.array([one.begin_ns for one in parts.passes], dtype=np.int64)
    of_trace = _Measured(
        host=_host_parts(parts),
        device=_Device(trace, parts, calls, cuts) if trace.on_device else None,
        has_passes=bool(parts.passes),
        has_calls=bool(calls),
    )
    steps = []
    for place, cut in enumerate(cuts):
        first, last = np.searchsorted(at, (cut.begin_ns, cut.end_ns)).tolist()
        step_calls = other_calls[first:last]
        first, last = np.searchsorted(began, (cut.begin_ns, cut.end_ns)).tolist()
        passes = parts.passes[first:last]
        reduction = _reduction(passes, on_device=trace.on_device)
        step = of_trace.step(place, cut, len(passes), reduction, step_calls)
        if reduction is not None:
            every = disjoint(_with_reductions(step_calls, passes), on_device=trace.on_device)
            step = replace(step, called=of_trace.step(place, cut, len(passes), None, every))
        steps.append(step)
    active = [step for step in steps if step.calls or step.passes or any(step.spans_ns.values())]
    return active or steps  # prof.step() also begins a step that the end of the recording truncates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Measured:
    """What all steps of a trace are measured with; ``host``: disjoint parts by name."""

    host: dict[str, Stretches]
    device: _Device | None
    has_passes: bool
    has_calls: bool

    def step(self, place: int, cut: Cut, passes: int, reduction: Reduction | None, calls: Sequence[Call]) -> Step:
        """The step ``cut``, the one at ``place``, with these ``calls`` beside its ``reduction``."""
        waiting = NONE if self.device else blocked(calls) - _reducing(reduction)
        spans = {f"{name}_ns": (part.within(*cut.span_ns) - waiting).total_ns for name, part in self.host.items()}
        if self.has_calls and self.device is None:  # in a trace without recognised collectives, their time is unknown
            spans["collective_ns"] = waiting.total_ns
        return Step(
            number=cut.number,
            begin_ns=cut.begin_ns,
            end_ns=cut.end_ns,
            spans_ns=spans,
            passes=passes if self.has_passes else None,
            reduction=reduction,
            device={} if self.device is None else self.device.step(place, calls, reduction),
            calls=tuple((call, _inside(self.host, call.called_ns)) for call in calls),
        )


def _with_reductions(calls: Sequence[Call], passes: Sequence[Pass]) -> list[Call]:
    """``calls`` and the reductions of all ``passes``, as calls, in order."""
    reducing = (replace(call, is_reduction=False, is_awaited=False) for one in passes for call in one.reductions)
    return sorted((*calls, *reducing), key=lambda call: call.called_ns)


def _host_parts(parts: Parts) -> dict[str, Stretches]:
    """Disjoint parts by name; absent where the trace shows none at all."""
    disjoint: dict[str, Stretches] = {}
    taken = NONE
    for name in PARTS:
        whole: Stretches = getattr(parts, name)
        if whole:
            disjoint[name] = whole - taken
            taken = taken | whole
    return disjoint


def _inside(host: dict[str, Stretches], t_ns: int) -> str | None:
    return next((name for name, part in host.items() if part.covers(t_ns)), None)


def _reduction(passes: Sequence[Pass], *, on_device: bool) -> Reduction | None:
    """The last reduction of a step; on a host, earlier ones, of other networks, stay in its backward time."""
    last = next((one for one in reversed(passes) if one.reductions), None)
    if last is None:
        return None
    ready = [call.ready_ns for call in last.reductions]
    sizes = tuple(call.use.size_bytes for call in last.reductions)
    known = [moment for moment in ready if moment is not None]
    if len(known) < len(ready):
        return None
    return Reduction(
        calls=last.reductions,
        ready_ns=tuple(np.maximum.accumulate(np.array(known, dtype=np.int64)).tolist()),
        sizes_bytes=sizes if all(sizes) else None,
        done_ns=_done_ns(last, max(known), on_device=on_device),
    )


def _done_ns(one: Pass, arrival_ns: int, *, on_device: bool) -> int | None:
    """When the reduced gradients were in place: on a host at the end of backward, which copies them back."""
    if one.done_ns is None:
        return None
    return max(arrival_ns, one.done_ns if on_device else one.end_ns)


def _reducing(reduction: Reduction | None) -> Stretches:
    if reduction is None or reduction.done_ns is None:
        return NONE
    return of([(reduction.ready_ns[-1], reduction.done_ns)])


class _Device:
    """What the device did, by the part of the step in which the host launched it."""

    def __init__(self, trace: Trace, parts: Parts, calls: Sequence[Call], cuts: Sequence[Cut]) -> None:
        begin, end, correlation = trace.kernels.arrays()
        launched = trace.launched_at(correlation)
        at = np.where(launched == UNKNOWN, begin, launched)
        self._trace, self._input = trace, parts.input
        self._checkpoint, self._calls = parts.checkpoint, bool(calls)
        self._parts: dict[str, Stretches] = {}
        taken = NONE
        host = _host_parts(parts)
        for name in ON_DEVICE:
            if name in host:
                mine = host[name].cover(at)
                self._parts[name] = union(begin[mine], end[mine]) - taken
                taken = taken | self._parts[name]
        ran = [(call.called_ns, call.ran_ns[1]) for call in calls if call.ran_ns]
        called, done = (np.array([pair[place] for pair in ran], dtype=np.int64) for place in (0, 1))
        self._windows = _windows(np.concatenate([at, called]), np.concatenate([end, done]), cuts)

    def step(self, place: int, calls: Sequence[Call], reduction: Reduction | None) -> dict[str, int]:
        """The fields of a ``DeviceStep``."""
        begin, end = self._windows[place]
        reducing = _reducing(reduction)
        called = blocked(calls) - reducing
        waiting = reducing | called
        computing = self._trace.computing.within(begin, end)
        parts = {name: part.within(begin, end) - waiting for name, part in self._parts.items()}
        copying = self._trace.copying.within(begin, end) - computing - waiting
        idle = of([(begin, end)]) - computing - waiting - copying
        evaluation = parts.pop("evaluation", NONE)
        fields = {f"{name}_ns": part.total_ns for name, part in parts.items()}
        if "backward_ns" in fields:
            fields["backward_ns"] += reducing.total_ns
        fields["busy_ns"] = (computing - waiting - evaluation).total_ns + reducing.total_ns
        if self._input:
            fields["input_ns"] = (self._input.within(begin, end) & idle).total_ns
        if self._checkpoint:
            fields["checkpoint_ns"] = (self._checkpoint.within(begin, end) & idle).total_ns
        if evaluation:
            fields["evaluation_ns"] = evaluation.total_ns
        if reduction is not None and reduction.done_ns is not None:
            fields |= {"arrival_ns": reduction.ready_ns[-1], "done_ns": reduction.done_ns}
        if self._calls:
            fields["collective_ns"] = called.total_ns
            exchanging = self._trace.exchanging.within(begin, end) - computing - waiting - copying
            fields["exchange_ns"] = exchanging.total_ns
        return fields | {"begin_ns": begin, "end_ns": end, "copy_ns": copying.total_ns}


def _windows(at: Times, end: Times, cuts: Sequence[Cut]) -> list[tuple[int, int]]:
    """Begin and end of each step on the device: until the last kernel that the host launched in it has ended."""
    order = np.argsort(at, kind="stable")
    at, latest = at[order], np.maximum.accumulate(end[order])

    def over(edge_ns: int) -> int:
        place = int(np.searchsorted(at, edge_ns)) - 1
        return max(edge_ns, int(latest[place])) if place >= 0 else edge_ns

    return [(over(cut.begin_ns), over(cut.end_ns)) for cut in cuts]
