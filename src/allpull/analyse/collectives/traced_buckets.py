"""Find DDP's buckets in profiler windows: when each was ready, and when it was reduced.

Gloo: ``c10d::allreduce_`` on the program's thread begins when a bucket is queued, which is when its last gradient is
there, and ``gloo:all_reduce`` on a worker thread is its execution, waiting for other ranks included. NCCL: the same
operation queues it, maybe many steps ahead; it is ready when the device has finished what was launched before, and a
kernel executes it. ``traces.collectives`` pairs the two. Kineto stamps the real-time clock; pairs of clock readings of
the rank convert it to its monotonic one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.rundir import safe_open
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.schema.events import TraceWindow
from allpull.schema.gap import Gap
from allpull.schema.results import BucketTime
from allpull.traces.collectives import SLACK_NS, executions, of_gradients, ready_ns, with_facts
from allpull.traces.kineto import MAX_NS, read_window
from allpull.traces.trace import Op, Trace
from allpull.units import NS_PER_S

MAX_BYTES = 128 << 20  # of all traces that one answer unpacks: a few seconds
CALL_NS = 5_000_000  # from our stamp of a call to the profiler's, where the interpreter is slow
SCHEMA = pl.Schema(
    dict.fromkeys(("rank", "step", "bucket", "size_bytes", "ready_ns", "start_ns", "end_ns"), pl.Int64())
)
"""Columns of bucket times; moments are of the rank's own monotonic clock."""

Row = tuple[int | None, ...]


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
    with_windows = [rank for rank, log in run.events.items() if log.traces]
    if not with_windows:
        return BucketWindows(times=pl.DataFrame(schema=SCHEMA), read=0, gaps=())
    root = safe_open.checked_directory(run.directory)
    steps = _by_rank(run.steps.select("rank", "step", "begin_ns", "end_ns", "done_ns"), with_windows)
    calls = _by_rank(run.collectives.select("rank", "begin_ns"), with_windows)
    left, read, unread, strange = limit_bytes, 0, 0, []
    for rank, window in _in_turn(run.events):
        if left <= 0:
            unread += 1
            continue
        trace = read_window(root, window.file, left)
        left -= trace.read_bytes
        queued = _queued(trace, _RealTime.of(run, rank))
        if run.is_from_traces or (trace.on_device and trace.accumulates):
            # calls have the moments of the device, which may be steps behind its host; an import told them by hooks too
            called = [not of_gradients(trace, one.op) for one in queued]
        else:
            called = _called(queued, calls[rank]["begin_ns"].to_numpy())
        own = [
            one
            for one, is_called in zip(queued, called, strict=True)
            if one.op.family == "all_reduce" and not one.op.blocks and not is_called
        ]
        inside = pl.col("step").is_between(window.first_step, window.first_step + window.steps - 1)
        buckets = list(_rows(run.events[rank], rank, steps[rank].filter(inside), own))
        rows += buckets
        read += bool(buckets)
        by_hand = any(called) and not own and not run.events[rank].buckets
        expected = not by_hand and (run.record.ranks > 1 or run.events[rank].buckets)
        if trace.fault or (expected and not buckets):
            strange.append(f"{window.file[:80]}: {trace.fault or 'no reduction of gradients was found in it'}")
    if strange:
        text = f"profiler windows: {len(strange):,} could not be fully used; {strange[0]}"
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


def bucket_sizes(logs: Iterable[EventLog], step: int, buckets: int | None, network: int = 0) -> list[int] | None:
    """Bytes of ``buckets`` buckets as DDP cut a network's at ``step``: as recorded last before it, or first after.

    ``buckets``: None for any number of them.
    """
    of_network = [one for log in logs for one in log.buckets if one.network == network]
    cuts = [one for one in of_network if buckets is None or len(one.sizes_bytes) == buckets]
    before = [one for one in cuts if one.step <= step]
    cut = max(before, key=attrgetter("step")) if before else min(cuts, key=attrgetter("step"), default=None)
    return None if cut is None else cut.sizes_bytes


def _in_turn(events: Mapping[int, EventLog]) -> Iterator[tuple[int, TraceWindow]]:
    most = max((len(log.traces) for log in events.values()), default=0)
    for place in range(1, most + 1):
        yield from ((rank, log.traces[-place]) for rank, log in sorted(events.items()) if len(log.traces) >= place)


def _by_rank(table: pl.DataFrame, ranks: list[int]) -> dict[int, pl.DataFrame]:
    """The rows of each of ``ranks``: one pass over ``table``, which may have far more rows than there are windows."""
    parts = table.filter(pl.col("rank").is_in(ranks)).partition_by("rank", as_dict=True, maintain_order=True)
    return {rank: parts.get((rank,), table.clear()) for rank in ranks}


def _rows(log: EventLog, rank: int, steps: pl.DataFrame, reductions: list[_Queued]) -> Iterator[Row]:
    """Rows of ``SCHEMA`` of the ``steps`` of one window, in which ``reductions`` were queued, in order of time."""
    queued = [one.queued_ns for one in reductions]
    for step, begin_ns, end_ns, done_ns in steps.select("step", "begin_ns", "end_ns", "done_ns").iter_rows():
        until_ns = end_ns if done_ns is None else min(end_ns, done_ns)  # a device may be done steps later
        buckets = reductions[bisect_left(queued, begin_ns) : bisect_right(queued, until_ns)]
        known = bucket_sizes([log], step, len(buckets))
        for place, one in enumerate(buckets):
            size = one.size_bytes if one.size_bytes is not None or known is None else known[place]
            yield (rank, step, place, size, one.ready_ns, *(one.ran_ns or (None, None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queued:
    """A collective that the program queued, in ns of the rank's monotonic clock; ``ran_ns``: begin and end."""

    op: Op
    queued_ns: int
    ready_ns: int
    ran_ns: tuple[int, int] | None
    size_bytes: int | None


def _queued(trace: Trace, clock: _RealTime) -> list[_Queued]:
    """What the program queued, by ``queued_ns``."""
    queued = []
    for op, run in executions(trace):
        queued_ns = clock.monotonic_ns(op.begin_ns) if op else MAX_NS
        if op is None or abs(queued_ns) >= MAX_NS:
            continue
        waited_ns = max(0, (ready_ns(trace, op, run) or op.begin_ns) - op.begin_ns)
        ran_ns = None
        if run is not None:
            begin_ns = min(clock.monotonic_ns(run.begin_ns), MAX_NS)
            ran_ns = (begin_ns, begin_ns + run.end_ns - run.begin_ns)
        facts = op if run is None else with_facts(op, run)
        size = None if facts.elements is None or facts.item_bytes is None else facts.elements * facts.item_bytes
        ready = min(queued_ns + waited_ns, MAX_NS)
        queued.append(_Queued(op=op, queued_ns=queued_ns, ready_ns=ready, ran_ns=ran_ns, size_bytes=size))
    return sorted(queued, key=lambda one: one.queued_ns)  # the two clocks may drift faster than time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RealTime:
    """The real-time clock of one rank against its monotonic one, at the moments when both were read.

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


def _called(queued: Sequence[_Queued], calls: NDArray[np.int64]) -> list[bool]:
    """Whether the program itself called each queued operation, by its step records: each call queues the next one."""
    begins = [one.queued_ns for one in queued]
    is_called = [False] * len(begins)
    if not begins:
        return is_called
    near = calls[(calls > begins[0] - CALL_NS) & (calls <= begins[-1] + SLACK_NS)]  # a window is few steps of a run
    place = 0
    for call_ns in np.sort(near).tolist():
        place = bisect_left(begins, call_ns - SLACK_NS, lo=place)
        if place < len(begins) and begins[place] - call_ns < CALL_NS:
            is_called[place] = True
            place += 1
    return is_called
