"""Find the collective calls of a trace: queued by the program, executed by a back-end, waited for by the rank.

A call is a reduction of gradients where DDP issued it: an all-reduce that the hook of a gradient queued (inside
``AccumulateGrad``), or the end of backward. Any other call costs its rank the idle time up to its end: on a device,
since the last compute kernel; on a host, since the last operation of the thread that queued it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from allpull.traces.collectives import executions, of_gradients, ready_ns, with_facts
from allpull.traces.intervals import Stretches, of
from allpull.traces.trace import AT_ONCE_NS, TOUCH_NS, Group, Op, Trace

MOST = 0.5  # of an execution: a rank that computed during the first half had not been held up by it
LATE_NS = 1_000_000  # a worker thread may be preempted between its work and the end of its annotation
DEFAULT_GROUP = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The kind of a call; ``size_bytes`` and ``group_ranks`` are 0 where nothing is sent, or where they are unknown."""

    family: str
    size_bytes: int
    dtype: str | None
    group: str
    group_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective of one rank, in ns of its host's real-time clock; None: unknown.

    ``called_ns`` is when the program called it, as far as the trace shows; ``arrived_ns`` when the rank arrived: on a
    host the call, on a device the execution. ``ready_ns`` is when the data were ready, ``ran_ns`` begin and end of the
    execution. ``blocked_ns``: how long the rank did nothing else, up to ``left_ns``. A reduction of gradients
    ``is_awaited`` if that is most of its execution, and the rank had more to compute.
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
    is_awaited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCalls:
    """The calls of a trace by begin; ``unknown`` counts executions of unknown operations."""

    calls: tuple[Call, ...]
    unknown: int


def calls_of(trace: Trace) -> TraceCalls:
    """All collectives of ``trace``."""
    pairs = list(executions(trace))
    exchanging = of((op.begin_ns, op.end_ns + AT_ONCE_NS) for op in trace.run if op.on_device)
    unknown = sum(1 for op, run in pairs if op is None and run is not None and run.family is None)
    calls = [_call(trace, op, run, exchanging) for op, run in pairs]
    in_order = sorted((call for call in calls if call is not None), key=lambda call: call.called_ns)
    apart = disjoint(in_order, on_device=trace.on_device)
    return TraceCalls(calls=tuple(_ready_after(apart)), unknown=unknown)


def _call(trace: Trace, op: Op | None, run: Op | None, exchanging: Stretches) -> Call | None:
    """A call; None: its operation is unknown. ``exchanging``: when the device ran any collective, or had just done."""
    first = op or run
    described = first if first is None or run is None or first is run else with_facts(first, run)
    if first is None or described is None or described.family is None:
        return None
    is_reduction = op is not None and described.family == "all_reduce" and of_gradients(trace, op)
    ran = None if run is None else (run.begin_ns, run.end_ns)
    wait = None if run is None else _wait_of(trace, op, run, exchanging)
    return Call(
        use=_use(trace, described),
        seq=described.seq,
        called_ns=first.begin_ns,
        arrived_ns=_arrived_ns(first, run, wait),
        ready_ns=ready_ns(trace, op, run),
        ran_ns=ran,
        left_ns=None if wait is None else wait[1],
        blocked_ns=None if wait is None else wait[1] - wait[0],
        is_reduction=is_reduction,
        is_awaited=is_reduction and run is not None and wait is not None and _is_awaited(trace, run, wait),
    )


def _arrived_ns(first: Op, run: Op | None, wait: tuple[int, int] | None) -> int:
    """On a device, when its stream came to the call, even if another collective held that up."""
    if run is None or not run.on_device:
        return first.begin_ns
    return run.begin_ns if wait is None else min(run.begin_ns, wait[0])


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


def _wait_of(trace: Trace, op: Op | None, run: Op, exchanging: Stretches) -> tuple[int, int] | None:
    """Begin and end of the time in which the rank only waited for the call; None: it never waited."""
    begin, end = run.begin_ns, run.end_ns
    if run.on_device:
        if trace.computing.covers(end - 1 - TOUCH_NS):
            return end, end
        since, held_since = trace.launch_of_awaiting(end), exchanging.begin_of_the_one_at(begin)
        if op is not None and since is not None and held_since is not None:  # by another collective in its stream
            begin = min(begin, max(since, held_since, op.begin_ns))
        return max(begin, trace.computing.last_end_before(end) or begin), end
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


def _is_awaited(trace: Trace, run: Op, wait: tuple[int, int]) -> bool:
    if run.on_device and trace.launch_of_awaiting(run.end_ns) is None:
        return False  # the host had not launched what came next: the device was idle for want of work
    return wait[1] - wait[0] >= MOST * (run.end_ns - run.begin_ns)


def disjoint(calls: Sequence[Call], *, on_device: bool) -> list[Call]:
    """The calls, with no moment counted as blocked twice: the rank waits for concurrent calls one after the other.

    On a host that is in the order of calling, which is that in which programs wait; a device passes them as they end.
    Reductions of gradients are no calls of the program, and stay as they are.
    """
    shortened: dict[int, tuple[int, int]] = {}
    for together in _concurrent(calls):
        until = min(begin for begin, _, _ in together)
        for begin_ns, left_ns, place in sorted(together, key=itemgetter(1 if on_device else 2)):
            begin = max(begin_ns, until)
            until = max(left_ns, begin)
            shortened[place] = (until, until - begin)
    return [
        replace(call, left_ns=shortened[place][0], blocked_ns=shortened[place][1]) if place in shortened else call
        for place, call in enumerate(calls)
    ]


def _ready_after(calls: Sequence[Call]) -> Iterator[Call]:
    """The calls; gradients are ready no sooner than the rank has left what it was blocked in before it queued them.

    Tensor parallelism calls collectives inside backward, and a device computes the next gradients after them.
    """
    left_ns = None
    for call in calls:
        if call.blocked_ns and not call.is_reduction:
            left_ns = call.left_ns
        if call.is_reduction and call.ready_ns is not None and call.ran_ns is not None and left_ns is not None:
            yield replace(call, ready_ns=max(call.ready_ns, min(left_ns, call.ran_ns[0])))
        else:
            yield call


def _concurrent(calls: Sequence[Call]) -> Iterator[list[tuple[int, int, int]]]:
    """Begin and end of being blocked, and place, of the calls that share a moment of it with one another."""
    spans = sorted(
        (call.left_ns - call.blocked_ns, call.left_ns, place)
        for place, call in enumerate(calls)
        if call.left_ns is not None and call.blocked_ns and not call.is_reduction
    )
    together: list[tuple[int, int, int]] = []
    end = 0
    for span in spans:
        if together and span[0] >= end:
            yield together
            together = []
        together.append(span)
        end = max(end, span[1])
    if together:
        yield together


def blocked(calls: Sequence[Call]) -> Stretches:
    """When the rank was blocked in any of these calls."""
    return of((call.left_ns - call.blocked_ns, call.left_ns) for call in calls if call.left_ns and call.blocked_ns)
