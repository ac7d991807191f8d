"""Make calls of what a trace shows of collectives: queued by the program, run by a back-end, waited for by somebody.

Kernels belong to the operation that launched them; where that is not told, and for Gloo, executions of equal operation
and size begin in the order in which they were queued. One operation may launch several kernels.

A call is a reduction of gradients where DDP made it: an all-reduce that the hook of a gradient queued (inside
``AccumulateGrad``), or the end of backward. Any other call cost its rank what it did nothing else in, up to its end: on
a device, since the last kernel that computed; on a host, since the last operation of the thread that queued it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from allpull.traces import classify
from allpull.traces.intervals import Stretches, of
from allpull.traces.trace import UNKNOWN, Group, Op, Trace

SLACK_NS = 50_000  # a kernel may seem to begin before its launch by some µs (kineto 1380), an annotation too
LATE_NS = 1_000_000  # a worker thread may be put aside between its work and the end of its annotation
LOOK_AHEAD = 64  # executions that are compared with one queued operation
DEFAULT_GROUP = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What is called; ``size_bytes`` is 0 where nothing is sent, and each number where it is not told."""

    family: str
    size_bytes: int
    dtype: str | None
    group: str
    group_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective of one rank, in ns of its host's real-time clock; None: not told.

    ``called_ns`` is when the program called it, as far as that is told; ``arrived_ns`` when the rank was there: on a
    host the call, on a device the execution. ``ready_ns`` is when the data were there, ``ran_ns`` begin and end of its
    execution. ``blocked_ns``: how long its rank did nothing else, up to ``left_ns``.
    """

    use: Use
    seq: int | None
    called_ns: int
    arrived_ns: int
    ready_ns: int | None
    ran_ns: tuple[int, int] | None = None
    left_ns: int | None = None
    blocked_ns: int | None = None
    is_reduction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The calls of a trace by begin; ``unknown`` counts executions of which nothing says what they are."""

    calls: tuple[Call, ...]
    unknown: int


def calls_of(trace: Trace) -> Found:
    """All collectives of ``trace``."""
    queued = _outermost(trace.queued)
    pairs = list(_paired(trace, queued))
    unknown = sum(1 for op, run in pairs if op is None and run is not None and run.family is None)
    found = [_call(trace, op, run) for op, run in pairs]
    known = sorted((call for call in found if call is not None), key=lambda call: call.called_ns)
    return Found(calls=tuple(_apart(known)), unknown=unknown)


def _outermost(ops: Sequence[Op]) -> list[Op]:
    """Queued operations by begin, each with what those inside it say: torch nests three descriptions of one call."""
    found: list[Op] = []
    last: dict[int, int] = {}
    for op in sorted(ops, key=lambda one: (one.begin_ns, -one.end_ns)):
        place = last.get(op.thread)
        if place is not None and op.end_ns <= found[place].end_ns:
            found[place] = _with_facts(found[place], op)
        else:
            last[op.thread] = len(found)
            found.append(op)
    return [op for op in found if op.is_certain and op.family is not None]


def _with_facts(op: Op, other: Op) -> Op:
    """``op`` with what only ``other`` tells."""
    names = ("family", "elements", "out_elements", "dtype", "item_bytes", "group", "group_ranks", "seq")
    told = {name: getattr(other, name) for name in names if getattr(op, name) is None}
    return replace(op, **told, is_certain=op.is_certain or other.is_certain)


def _paired(trace: Trace, queued: Sequence[Op]) -> Iterator[tuple[Op | None, Op | None]]:
    """Each queued operation with its execution, and executions that nobody was seen to queue."""
    launched, rest = _by_launch(trace, queued)
    free: dict[str | None, deque[Op]] = defaultdict(deque)
    for run in sorted(rest, key=lambda one: one.begin_ns):
        free[run.family].append(run)
    for place, op in enumerate(queued):
        if place in launched:
            yield op, _whole(launched[place])
            continue
        yield op, _first_like(op, free)
        for runs in free.values():  # what ended before was queued before the trace began
            while runs and runs[0].end_ns < op.begin_ns - SLACK_NS:
                yield None, runs.popleft()
    yield from ((None, run) for runs in free.values() for run in runs)


def _by_launch(trace: Trace, queued: Sequence[Op]) -> tuple[dict[int, list[Op]], list[Op]]:
    """Executions by the place of the queued operation that launched them, and those of which that is not told."""
    found: dict[int, list[Op]] = defaultdict(list)
    rest: list[Op] = []
    at = trace.launched_at(np.array([run.correlation for run in trace.run], dtype=np.int64))
    begins = np.array([op.begin_ns for op in queued], dtype=np.int64)
    places = np.searchsorted(begins, at, side="right") - 1
    for run, launched_ns, last in zip(trace.run, at.tolist(), places.tolist(), strict=True):
        inside = (
            place
            for place in range(last, max(-1, last - LOOK_AHEAD), -1)
            if queued[place].begin_ns <= launched_ns <= queued[place].end_ns and _may_be(queued[place], run)
        )
        place = next(inside, None) if launched_ns != UNKNOWN else None
        if place is None:
            rest.append(run)
        else:
            found[place].append(run)
    return found, rest


def _first_like(op: Op, free: Mapping[str | None, deque[Op]]) -> Op | None:
    """The first execution that may be that of ``op``, taken out."""
    found: list[tuple[int, str | None, int]] = []
    for family in (*_kernels_of(op), None):
        runs = islice(free.get(family, ()), LOOK_AHEAD)
        places = (
            place for place, run in enumerate(runs) if run.begin_ns >= op.begin_ns - SLACK_NS and _may_be(op, run)
        )
        if (place := next(places, None)) is not None:
            found.append((free[family][place].begin_ns, family, place))
    if not found:
        return None
    _, family, place = min(found, key=_begin)
    run = free[family][place]
    del free[family][place]
    return run


def _kernels_of(op: Op) -> frozenset[str | None]:
    return classify.MADE_OF.get(op.family or "", frozenset({op.family}))


def _begin(found: tuple[int, str | None, int]) -> int:
    return found[0]


def _may_be(op: Op, run: Op) -> bool:
    kinds = _kernels_of(op)
    alike = run.family is None or run.family in kinds
    sized = len(kinds) > 1 or None in (op.elements, run.elements) or op.elements == run.elements
    return alike and sized and (None in (op.group, run.group) or op.group == run.group)


def _whole(runs: Sequence[Op]) -> Op:
    """Several kernels of one operation as one."""
    first = min(runs, key=lambda one: one.begin_ns)
    return replace(first, end_ns=max(run.end_ns for run in runs))


def _call(trace: Trace, op: Op | None, run: Op | None) -> Call | None:
    """A call, unless nothing says which it is."""
    first = op or run
    told = first if first is None or run is None or first is run else _with_facts(first, run)
    if first is None or told is None or told.family is None:
        return None
    is_reduction = op is not None and told.family == "all_reduce" and _of_gradients(trace, op)
    ran = None if run is None else (run.begin_ns, run.end_ns)
    waited = None if run is None or is_reduction else _waited(trace, op, run)
    return Call(
        use=_use(trace, told),
        seq=told.seq,
        called_ns=first.begin_ns,
        arrived_ns=run.begin_ns if run is not None and run.on_device else first.begin_ns,
        ready_ns=_ready_ns(trace, op, run),
        ran_ns=ran,
        left_ns=None if waited is None else waited[1],
        blocked_ns=None if waited is None else waited[1] - waited[0],
        is_reduction=is_reduction,
    )


def _use(trace: Trace, op: Op) -> Use:
    item = op.item_bytes or 0
    group = trace.groups.get(op.group or "") or Group(name=op.group or DEFAULT_GROUP, ranks=trace.ranks or 0)
    return Use(
        family=op.family or "",
        size_bytes=item * max(op.elements or 0, op.out_elements or 0),
        dtype=op.dtype,
        group=group.name,
        group_ranks=op.group_ranks or group.ranks,
    )


def _of_gradients(trace: Trace, op: Op) -> bool:
    """Whether DDP queued it: from the hook of a gradient, or in backward and outside of all its functions."""
    if trace.accumulates.covers(op.begin_ns):
        return True
    return trace.marked_backward.covers(op.begin_ns) and not trace.differentiates.covers(op.begin_ns)


def _ready_ns(trace: Trace, op: Op | None, run: Op | None) -> int | None:
    """When the data were there: on a device, what had been launched before the call had ended; on a host, the call."""
    if op is None:
        return None if run is None else run.begin_ns
    if run is None:
        return None if trace.on_device else op.begin_ns
    if not run.on_device:
        return op.begin_ns
    ended = trace.ended_of_launched_before(op.begin_ns)
    if ended is None and not trace.computing.covers(run.begin_ns):  # of a graph, say: it may have been queued since
        ended = trace.computing.last_end_before(run.begin_ns)
    return run.begin_ns if ended is None else min(ended, run.begin_ns)


def _waited(trace: Trace, op: Op | None, run: Op) -> tuple[int, int] | None:
    """From when to when the rank did nothing else, up to the end of the call; None: it never waited for it."""
    begin, end = run.begin_ns, run.end_ns
    if run.on_device:
        last = end if trace.computing.covers(end - 1) else trace.computing.last_end_before(end)
        return (begin if last is None else max(begin, last), end)
    if op is None:
        return begin, end
    begin = op.begin_ns
    busy = trace.busy(op.thread)
    resumed = busy.begin_of_the_one_at(end - 1)
    if resumed is not None:
        if resumed <= max(op.end_ns, run.begin_ns) or end - resumed > LATE_NS:
            return None  # it did something else meanwhile
        end = resumed
    last = busy.last_end_before(end)
    if last is None or last <= op.end_ns:
        return begin, end  # nothing was done since the call
    return max(begin, last), end


def _apart(calls: Sequence[Call]) -> Iterator[Call]:
    """The calls, with no moment blocked in two of them: what is in flight together is waited for in turn."""
    cut: dict[int, int] = {}
    until = None
    for place in sorted(range(len(calls)), key=lambda place: calls[place].left_ns or 0):
        left, blocked_ns = calls[place].left_ns, calls[place].blocked_ns
        if left is not None and blocked_ns:
            begin = left - blocked_ns
            cut[place] = left - (begin if until is None else max(begin, min(until, left)))
            until = left
    for place, call in enumerate(calls):
        yield replace(call, blocked_ns=cut[place]) if place in cut else call


def blocked(calls: Sequence[Call]) -> Stretches:
    """When the rank was blocked in any of these."""
    return of((call.left_ns - call.blocked_ns, call.left_ns) for call in calls if call.left_ns and call.blocked_ns)
