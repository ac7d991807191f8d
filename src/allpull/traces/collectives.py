"""Pair the collectives that a program queued with their executions by a back-end.

Kernels belong to the operation that launched them. Where the trace does not link them, and for Gloo, executions of
equal operation and size begin in the order in which they were queued. One operation may launch several kernels.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from allpull.traces import classify
from allpull.traces.trace import UNKNOWN, Op, Trace

SLACK_NS = 50_000  # a kernel, or an annotation, may seem to begin some µs before its launch (kineto 1380)
LOOK_AHEAD = 64  # executions that are compared with one queued operation

_FACTS = ("family", "elements", "out_elements", "dtype", "item_bytes", "group", "group_ranks", "seq")


def executions(trace: Trace) -> Iterator[tuple[Op | None, Op | None]]:
    """Each queued operation of ``trace``, by begin, with its execution, or None.

    An execution whose queueing was not recorded is given as ``(None, execution)``.
    """
    queued = _outermost(trace.queued)
    launched, unlaunched = _by_launch(trace, queued)
    free: dict[str | None, deque[Op]] = defaultdict(deque)
    for run in sorted(unlaunched, key=_begin_ns):
        free[run.family].append(run)
    for place, op in enumerate(queued):
        if place in launched:
            yield op, _whole(launched[place])
            continue
        yield op, _first_match(op, free)
        for runs in free.values():  # what ended earlier was queued before the trace began
            while runs and runs[0].end_ns < op.begin_ns - SLACK_NS:
                yield None, runs.popleft()
    yield from ((None, run) for runs in free.values() for run in runs)


def of_gradients(trace: Trace, op: Op) -> bool:
    """Whether DDP queued it: from the hook of a gradient, or in backward outside all autograd functions."""
    if trace.accumulates.covers(op.begin_ns):
        return True
    return trace.marked_backward.covers(op.begin_ns) and not trace.differentiates.covers(op.begin_ns)


def ready_ns(trace: Trace, op: Op | None, run: Op | None) -> int | None:
    """When the data were ready: on a device, when the kernels launched before it had ended; on a host, at the call."""
    if op is None:
        return None if run is None else run.begin_ns
    if run is None:
        return None if trace.on_device else op.begin_ns
    if not run.on_device:
        return op.begin_ns
    ended = trace.ended_of_launched_before(op.begin_ns)
    if ended is None and not trace.computing.covers(run.begin_ns):  # as in a graph: it may have been queued since
        ended = trace.computing.last_end_before(run.begin_ns)
    return run.begin_ns if ended is None else min(ended, run.begin_ns)


def with_facts(op: Op, other: Op) -> Op:
    """``op``, with the fields that only ``other`` has."""
    missing: dict[str, Any] = {
        name: fact for name in _FACTS if getattr(op, name) is None and (fact := getattr(other, name)) is not None
    }
    missing |= {name: True for name in ("is_certain", "blocks") if getattr(other, name) and not getattr(op, name)}
    return replace(op, **missing) if missing else op


def _outermost(ops: Sequence[Op]) -> list[Op]:
    """Queued operations by begin, each with the facts of those inside it: torch nests three descriptions of a call."""
    kept: list[Op] = []
    last: dict[int, int] = {}
    for op in sorted(ops, key=lambda one: (one.begin_ns, -one.end_ns)):
        place = last.get(op.thread)
        if place is not None and op.end_ns <= kept[place].end_ns:
            kept[place] = with_facts(kept[place], op)
        else:
            last[op.thread] = len(kept)
            kept.append(op)
    return [op for op in kept if op.is_certain and op.family is not None]


def _by_launch(trace: Trace, queued: Sequence[Op]) -> tuple[dict[int, list[Op]], list[Op]]:
    """Executions by the place of the queued operation that launched them, and those whose launch is unknown."""
    launched: dict[int, list[Op]] = defaultdict(list)
    unlaunched: list[Op] = []
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
            unlaunched.append(run)
        else:
            launched[place].append(run)
    return launched, unlaunched


def _first_match(op: Op, free: Mapping[str | None, deque[Op]]) -> Op | None:
    """The first execution that may be that of ``op``, removed from ``free``."""
    candidates: list[tuple[int, str | None, int]] = []
    for family in (*_kernels_of(op), None):
        runs = islice(free.get(family, ()), LOOK_AHEAD)
        places = (
            place for place, run in enumerate(runs) if run.begin_ns >= op.begin_ns - SLACK_NS and _may_be(op, run)
        )
        if (place := next(places, None)) is not None:
            candidates.append((free[family][place].begin_ns, family, place))
    if not candidates:
        return None
    _, family, place = min(candidates, key=lambda one: one[0])
    run = free[family][place]
    del free[family][place]
    return run


def _kernels_of(op: Op) -> frozenset[str | None]:
    return classify.MADE_OF.get(op.family or "", frozenset({op.family})) | _made_on_hosts(op)


def _made_on_hosts(op: Op) -> frozenset[str | None]:
    return classify.MADE_ON_HOSTS.get(op.family or "", frozenset())


def _may_be(op: Op, run: Op) -> bool:
    """Whether ``run`` can be the execution of ``op``: operation, size and group agree where both are known."""
    families = _kernels_of(op) - (_made_on_hosts(op) if run.on_device else frozenset())
    same_family = run.family is None or run.family in families
    same_size = len(families) > 1 or None in (op.elements, run.elements) or op.elements == run.elements
    return same_family and same_size and (None in (op.group, run.group) or op.group == run.group)


def _whole(runs: Sequence[Op]) -> Op:
    """Several kernels of one operation as one."""
    return replace(min(runs, key=_begin_ns), end_ns=max(run.end_ns for run in runs))


def _begin_ns(op: Op) -> int:
    return op.begin_ns
