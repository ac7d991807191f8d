"""Find DDP's buckets in profiler windows: when each was ready, and when it was reduced.

Gloo: ``c10d::allreduce_`` on the program's thread begins when a bucket is queued, which is when its last gradient is
there, and ``gloo:all_reduce`` on a worker thread is its execution, waiting for other ranks included. NCCL: the same
operation queues it, and its kernel carries the name and size of the collective; kernels that do not are known by their
names. Executions of equal operation and size begin in the order in which they were queued, so that is how they are
matched. Kineto stamps the real-time clock, which the rank's own pairs of clocks turn into its monotonic one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.rundir import safe_open
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.rundir.read.traces import Trace, read_trace
from allpull.schema.events import TraceWindow
from allpull.schema.gap import Gap
from allpull.schema.results import BucketTime
from allpull.units import NS_PER_S

MAX_BYTES = 128 << 20  # of all traces that one answer unpacks: a few seconds
MAX_US = 2**51  # 71 years; and what a float holds of it is exact to 1 µs
MAX_NS = 2**62  # as of all moments: differences of two such fit 64 bits
MAX_ELEMENTS = 2**40
STAMP_SLACK_NS = 50_000  # between our own stamp before a call and the profiler's inside it
CALL_NS = 5_000_000  # from the one to the other where the interpreter is slow
LOOK_AHEAD = 64  # executions that are compared with one queued operation
SCHEMA = pl.Schema(
    dict.fromkeys(("rank", "step", "bucket", "size_bytes", "ready_ns", "start_ns", "end_ns"), pl.Int64())
)
"""Columns of bucket times; moments are of the rank's own monotonic clock."""

Row = tuple[int | None, ...]

_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
_ITEM_BYTES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Op:
    """Something in a trace that is a collective: ``op`` without underscores; ``numbers`` are elements, if known."""

    op: str
    numbers: int | None
    item_bytes: int | None
    begin_ns: int
    end_ns: int
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketWindows:
    """Bucket times (columns of ``SCHEMA``) of the ``read`` windows, and what could not be read."""

    times: pl.DataFrame
    read: int
    gaps: tuple[Gap, ...]


def bucket_windows(run: RunData, *, limit_bytes: int = MAX_BYTES) -> BucketWindows:
    """The buckets in the profiler windows of ``run``: the last window of each rank first, until ``limit_bytes``."""
    rows: list[Row] = []
    gaps: list[Gap] = []
    root = (
        safe_open.checked_directory(run.directory) if any(log.traces for log in run.events.values()) else run.directory
    )
    left, read, unread, strange = limit_bytes, 0, 0, []
    for rank, window in _in_turn(run.events):
        if left <= 0:
            unread += 1
            continue
        trace = read_trace(root, window.file, is_collective, left)
        left -= trace.read_bytes
        found = list(_of_window(run, rank, window, trace))
        rows += found
        read += bool(found)
        if trace.fault or not found:
            strange.append(f"{window.file[:80]}: {trace.fault or 'no reduction of gradients was found in it'}")
    if strange:
        text = f"profiler windows: {len(strange):,} could not be used whole; {strange[0]}"
        gaps.append(Gap(kind="profiler windows", text=text))
    if unread:
        gaps.append(
            Gap(kind="profiler windows", text=f"profiler windows: {unread:,} were not read, to keep this short")
        )
    return BucketWindows(times=pl.DataFrame(rows, schema=SCHEMA, orient="row"), read=read, gaps=tuple(gaps))


def summary(windows: BucketWindows, steps: pl.DataFrame) -> list[BucketTime]:
    """Medians over the rank-steps that have the most usual number of buckets; ``steps``: rank, step and begin_ns."""
    counted = windows.times.with_columns(pl.len().over("rank", "step").alias("buckets"))
    if counted.is_empty():
        return []
    usual = counted["buckets"].mode().sort()[0]
    begun = counted.filter(pl.col("buckets") == usual).join(
        steps.select("rank", "step", "begin_ns"), on=["rank", "step"]
    )
    moments = ("ready_ns", "start_ns", "end_ns")
    by_bucket = begun.group_by("bucket").agg(
        pl.col("size_bytes").mode().sort().first(),
        pl.len().alias("seen"),
        *((pl.col(name) - pl.col("begin_ns")).median() / NS_PER_S for name in moments),
    )
    return [
        BucketTime(
            bucket=row["bucket"],
            size_bytes=row["size_bytes"],
            seen=row["seen"],
            ready_s=row["ready_ns"],
            start_s=row["start_ns"],
            end_s=row["end_ns"],
        )
        for row in by_bucket.sort("bucket").iter_rows(named=True)
    ]


def is_collective(event: Mapping[str, Any]) -> bool:
    """Whether an event of a trace is a collective being queued or executed."""
    name, arguments = event.get("name"), event.get("args")
    if event.get("ph") != "X" or not isinstance(name, str):
        return False
    if name.startswith(("c10d::", "gloo:")):
        return True
    is_kernel = str(event.get("cat")).lower() == "kernel"
    return is_kernel and (name.startswith("nccl") or (isinstance(arguments, dict) and "Collective name" in arguments))


def _in_turn(events: Mapping[int, EventLog]) -> Iterator[tuple[int, TraceWindow]]:
    most = max((len(log.traces) for log in events.values()), default=0)
    for place in range(1, most + 1):
        yield from ((rank, log.traces[-place]) for rank, log in sorted(events.items()) if len(log.traces) >= place)


def _of_window(run: RunData, rank: int, window: TraceWindow, trace: Trace) -> Iterator[Row]:
    """Rows of ``SCHEMA`` of one window."""
    queued, executed = _ops(trace, _RealTime.of(run, rank))
    last = window.first_step + window.steps - 1
    steps = run.steps.filter(pl.col("rank") == rank, pl.col("step").is_between(window.first_step, last))
    called = _called(queued, run.collectives.filter(pl.col("rank") == rank)["begin_ns"].to_numpy())
    reductions = [
        pair
        for pair, is_called in zip(_executions(queued, executed), called, strict=True)
        if pair[0].op == "allreduce" and not pair[0].waits and not is_called
    ]
    for step, begin_ns, end_ns, done_ns in steps.select("step", "begin_ns", "end_ns", "done_ns").iter_rows():
        until_ns = end_ns if done_ns is None else done_ns
        mine = [(op, execution) for op, execution in reductions if begin_ns <= op.begin_ns <= until_ns]
        said = _sizes(run.events[rank], step, len(mine))
        for place, (op, execution) in enumerate(mine):
            item_bytes = execution.item_bytes if execution else None
            own = op.numbers * item_bytes if op.numbers is not None and item_bytes is not None else None
            size = said[place] if own is None and said else own
            times = (execution.begin_ns, execution.end_ns) if execution else (None, None)
            yield (rank, step, place, size, op.begin_ns, *times)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RealTime:
    """The real-time clock of one rank against its monotonic one, at the moments when both were looked at.

    ``at`` and ``ahead`` are ns after ``at_ns`` and beyond ``ahead_ns``: whole clocks exceed the digits of a float.
    """

    at_ns: int
    ahead_ns: int
    at: NDArray[np.float64]
    ahead: NDArray[np.float64]

    @classmethod
    def of(cls, run: RunData, rank: int) -> _RealTime:
        """The clocks of ``rank``."""
        looks = sorted((pair.realtime_ns, pair.realtime_ns - pair.monotonic_ns) for pair in run.events[rank].clocks)
        if not looks and rank in run.headers:
            clock = run.headers[rank].clock
            looks = [(clock.realtime_ns, clock.realtime_ns - clock.monotonic_ns)]
        at_ns, ahead_ns = looks[0] if looks else (0, 0)
        at = np.array([look[0] - at_ns for look in looks] or [0], dtype=np.float64)
        ahead = np.array([look[1] - ahead_ns for look in looks] or [0], dtype=np.float64)
        return cls(at_ns=at_ns, ahead_ns=ahead_ns, at=at, ahead=ahead)

    def monotonic_ns(self, real_ns: int) -> int:
        """The same moment on the monotonic clock."""
        return real_ns - self.ahead_ns - round(float(np.interp(real_ns - self.at_ns, self.at, self.ahead)))


def _ops(trace: Trace, clock: _RealTime) -> tuple[list[_Op], list[_Op]]:
    """What was queued, and what was executed, each by its begin."""
    queued: list[_Op] = []
    executed: list[_Op] = []
    for event in trace.events:
        begin_us, length_us, name = event.get("ts"), event.get("dur", 0), event["name"]
        if not isinstance(begin_us, (int, float)) or not isinstance(length_us, (int, float)):
            continue
        if not 0 <= begin_us < MAX_US or not 0 <= length_us < MAX_US:
            continue
        begin_ns = clock.monotonic_ns(trace.base_ns + round(begin_us * 1000))
        if abs(begin_ns) >= MAX_NS:
            continue
        op = _described(name, event.get("args"), begin_ns, begin_ns + round(length_us * 1000))
        (queued if name.startswith("c10d::") else executed).append(op)
    return sorted(queued, key=_begin_ns), sorted(executed, key=_begin_ns)


def _begin_ns(op: _Op) -> int:
    return op.begin_ns


def _described(name: str, arguments: Any, begin_ns: int, end_ns: int) -> _Op:
    facts = arguments if isinstance(arguments, dict) else {}
    kernel = _KERNEL.match(name)
    said = facts.get("Collective name")
    op = said if isinstance(said, str) else kernel.group(1) if kernel else name.rpartition(":")[2]
    elements = facts.get("In msg nelems")
    kinds = facts.get("Input type")
    kind = facts.get("dtype") or (kinds[0] if isinstance(kinds, list) and kinds else None)
    inputs = facts.get("Concrete Inputs")
    return _Op(
        op=op.replace("_", "").lower().removesuffix("base"),
        numbers=elements if type(elements) is int else _elements(facts.get("Input Dims")),
        item_bytes=_ITEM_BYTES.get(kind) if isinstance(kind, str) else None,
        begin_ns=begin_ns,
        end_ns=end_ns,
        waits=isinstance(inputs, list) and "False" in inputs,  # DDP's own are asynchronous
    )


def _elements(dims: Any) -> int | None:
    """Numbers in the first argument of an operation: one tensor's dimensions, or those of a list of tensors."""
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return None
    tensors = dims[0] if dims[0] and isinstance(dims[0][0], list) else [dims[0]]
    sizes = [size for tensor in tensors if isinstance(tensor, list) for size in tensor]
    if not all(type(size) is int and 0 <= size < MAX_ELEMENTS for size in sizes):
        return None
    return min(sum(math.prod(tensor) for tensor in tensors if isinstance(tensor, list)), MAX_ELEMENTS)


def _executions(queued: Sequence[_Op], executed: Sequence[_Op]) -> Iterator[tuple[_Op, _Op | None]]:
    """Each queued operation with its execution: the first of its like that is not taken and does not begin before."""
    free = list(executed)
    for op in queued:
        place = next(
            (
                place
                for place, one in enumerate(free[:LOOK_AHEAD])
                if one.op == op.op
                and (None in (one.numbers, op.numbers) or one.numbers == op.numbers)
                and one.begin_ns >= op.begin_ns - STAMP_SLACK_NS
            ),
            None,
        )
        yield op, None if place is None else free.pop(place)
        while free and free[0].end_ns < op.begin_ns:  # of an operation that was queued before the window
            del free[0]


def _called(queued: Sequence[_Op], calls: NDArray[np.int64]) -> list[bool]:
    """Of each queued operation whether the program itself called it, as its step records say: the next after a call."""
    begins = np.array([op.begin_ns for op in queued], dtype=np.int64)
    found = np.zeros(begins.size, dtype=np.bool_)
    if begins.size and calls.size:
        near = calls[(calls > begins[0] - CALL_NS) & (calls < begins[-1] + CALL_NS)]
        places = np.searchsorted(begins, near - STAMP_SLACK_NS)
        fits = places < begins.size
        places, near = places[fits], near[fits]
        found[places[begins[places] - near < CALL_NS]] = True
    return [bool(one) for one in found]


def _sizes(log: EventLog, step: int, buckets: int) -> list[int] | None:
    """Sizes of as many ``buckets`` as DDP said them last before ``step``, or else the first time after."""
    said = [one for one in log.buckets if len(one.sizes_bytes) == buckets]
    before = [one for one in said if one.step <= step]
    chosen = before[-1:] or said[:1]
    return chosen[0].sizes_bytes if chosen else None
