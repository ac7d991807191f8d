"""Write the steps and events of one imported rank as lines of JSON, in the format of a run directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from allpull.importers.clocks import Look
from allpull.importers.joining import Rank
from allpull.importers.kineto.calls import Call, Use
from allpull.importers.kineto.measure import Step
from allpull.schema.base import tag
from allpull.schema.steps import PHASES

PAUSES = ("evaluation", "checkpoint")
"""Phases that make a step unusual: it is tagged so."""
LEAST_BUDGET = 1 << 20  # of a file, in bytes; readers allow twice what its header says

Kinds = dict[tuple[Use, str | None], int]


def steps_lines(
    rank: Rank, *, size: int, local_rank: int, against: str | None, looks: Iterable[Look]
) -> tuple[str, Kinds]:
    """The steps file of a rank, and the ids of the kinds of collectives in it.

    ``size`` is the size of its job; ``looks`` compare the clock of its host with that of the host ``against``.
    """
    kinds: Kinds = {}
    lines = [json.dumps(_step(number, step, kinds)) for number, step in rank.steps]
    header = {
        "schema": tag("steps"),
        "rank": rank.rank,
        "local_rank": local_rank,
        "ranks": size,
        "host": rank.host,
        "pid": rank.pid,
        "clock": _pair(rank.steps[0][1].begin_ns),
        "boundary": rank.boundary,
        "sources": list(rank.sources),
        "budget": max(LEAST_BUDGET, sum(map(len, lines))),
    }
    if against is not None:
        rows = [[look.at_ns, look.offset_ns, look.bound_ns] for look in looks]
        header["compared"] = {"against": against, "looks": rows}
    return "\n".join([json.dumps(header), *lines, ""]), kinds


def events_lines(rank: Rank, kinds: Kinds, files: Iterable[tuple[str, int, int]]) -> str:
    """The events file of a rank; ``files`` are its raw traces, each with its first and last step."""
    begin_ns, end_ns = rank.steps[0][1].begin_ns, rank.steps[-1][1].end_ns
    events = [
        {"kind": "clock", **_pair(begin_ns)},
        {"kind": "clock", **_pair(end_ns)},
        *_kinds(kinds, begin_ns),
        *_buckets(rank),
        *_windows(rank, files),
        *(_device(number, step) for number, step in rank.steps if step.device),
        {"kind": "end", "steps": len(rank.steps), "t_ns": end_ns},
    ]
    lines = [json.dumps(event) for event in events]
    header = {"schema": tag("events"), "rank": rank.rank, "host": rank.host}
    budget = max(LEAST_BUDGET, sum(map(len, lines)))
    return "\n".join([json.dumps(header | {"budget": budget}), *lines, ""])


def _pair(t_ns: int) -> dict[str, int]:
    """Both clocks of an imported rank are the clock of its trace."""
    return {"monotonic_ns": t_ns, "realtime_ns": t_ns}


def _step(number: int, step: Step, kinds: Kinds) -> dict[str, Any]:
    spans = {f"{phase}_ns": step.spans_ns.get(f"{phase}_ns") for phase in PHASES}
    record: dict[str, Any] = {"step": number, "epoch": 0, "begin_ns": step.begin_ns, "end_ns": step.end_ns, **spans}
    blocked_ns = step.device.get("collective_ns", step.spans_ns.get("collective_ns"))
    if blocked_ns is not None:
        record["collective_ns"] = blocked_ns
    if tags := [name for name in PAUSES if step.spans_ns.get(f"{name}_ns") or step.device.get(f"{name}_ns")]:
        record["tags"] = tags
    if step.passes is not None:
        record["backward_passes"] = step.passes
    if step.reduction is not None:
        record["ready_ns"] = list(step.reduction.ready_ns)
        if step.reduction.done_ns is not None:
            record |= {"arrival_ns": step.reduction.ready_ns[-1], "done_ns": step.reduction.done_ns}
    if step.calls:
        record["collectives"] = [
            _call(call, kinds.setdefault((call.use, inside), len(kinds))) for call, inside in step.calls
        ]
    return record


def _call(call: Call, kind: int) -> list[int | None]:
    return [kind, call.seq, call.arrived_ns, call.blocked_ns, call.left_ns]


def _kinds(kinds: Kinds, t_ns: int) -> Iterator[dict[str, Any]]:
    for (use, inside), number in kinds.items():
        yield {
            "kind": "collective_kind",
            "id": number,
            "op": use.family,
            "size_bytes": use.size_bytes,
            "dtype": use.dtype,
            "group": use.group,
            "group_ranks": max(1, use.group_ranks),
            "inside": inside,
            "t_ns": t_ns,
        }


def _buckets(rank: Rank) -> Iterator[dict[str, Any]]:
    """The bucket sizes, each time they change."""
    last = None
    for number, step in rank.steps:
        sizes = step.reduction.sizes_bytes if step.reduction else None
        if sizes is not None and sizes != last:
            yield {"kind": "buckets", "step": number, "sizes_bytes": list(sizes), "t_ns": step.begin_ns}
            last = sizes


def _windows(rank: Rank, files: Iterable[tuple[str, int, int]]) -> Iterator[dict[str, Any]]:
    times = dict(rank.steps)
    for file, first, last in files:
        yield {
            "kind": "trace",
            "file": file,
            "first_step": first,
            "steps": last - first + 1,
            "begin_ns": times[first].begin_ns,
            "end_ns": times[last].end_ns,
        }


def _device(number: int, step: Step) -> dict[str, Any]:
    return {"kind": "device_step", "step": number, **step.device, "t_ns": step.device["end_ns"]}
