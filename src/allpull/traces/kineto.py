"""Read a trace of torch.profiler (Chrome JSON, as Kineto writes it), event by event, into columns.

A gigabyte of trace becomes tens of megabytes: three numbers per operation and kernel, and the few events that
describe the program. Times are in µs after ``baseTimeNanoseconds`` of the real-time clock, or after 1970 in older
traces. Implausible events (negative durations, impossible times) are counted and left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.traces import classify
from allpull.traces.classify import LANES
from allpull.traces.json_stream import Text, members
from allpull.traces.trace import UNKNOWN, Annotation, Arguments, Columns, Group, Op, Trace
from allpull.traces.unpacked import Unpacked

MAX_US = 2**52  # 142 years; a float below it is exact to 1 µs
MAX_NS = 2**62  # as for all moments in a run directory: their differences fit 64 bits
MAX_EVENTS = 50_000_000  # of one trace kept as columns, 24 bytes each
MAX_KEPT = 500_000  # of one trace kept as records
MAX_THREADS = 100_000
MAX_RANKS = 1_000_000  # as in schema.run
MAX_LIST = 100_000  # characters of a list of ranks
BY_THEIR_CALLER = {"all_reduce", "all_gather", "reduce_scatter"}
"""Calls that say which rank made them; the others name a root, a source or a destination."""
RANKS = re.compile(r"\d{1,6}")
MAX_NAME = 200  # characters of any name that is kept

Number = int | float


def read_trace(file: Unpacked) -> Trace:
    """The trace in ``file``; where it is damaged or cut off, what precedes the damage, and ``fault`` says why."""
    reader = _Reader(Trace())
    try:
        for name, value in members(Text(file.read), ("traceEvents",)):
            if name in ("traceEvents", ""):
                reader.event(value)
            else:
                reader.member(name, value)
    except ValueError as fault:
        reader.trace.fault = str(fault)[:MAX_NAME]
    reader.trace.read_bytes = file.read_bytes
    return reader.finished()


def read_window(root: Path, relative: str, limit_bytes: int) -> Trace:
    """The trace ``relative`` of the resolved run directory ``root``, unpacked up to ``limit_bytes``.

    A file that cannot be opened is an empty trace with a ``fault``, which does not repeat where the file is: a report
    that shows it may go to other people.
    """
    try:
        with safe_open.opened(root, relative) as (file, size_bytes):
            packed = relative.endswith(".gz")
            return read_trace(Unpacked(file, size_bytes, is_packed=packed, limit_bytes=limit_bytes))
    except RunDirError as error:
        return Trace(fault=error.message.removeprefix(f"{safe_open.shown_path(root)}/{relative}: "))


class _Reader:
    """Sorts the events of one trace into their columns."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._threads: dict[tuple[str, int | str | None], int] = {}
        self._latest_ns = 0
        self._by_lane: dict[str, Callable[[str, Arguments, int, int, object], None]] = {
            "op": self._op,
            "note": self._note,
            "kernel": self._kernel,
            "copy": self._copy,
            "launch": self._launch,
        }

    def event(self, event: Any) -> None:
        """One event of the trace.

        Raises:
            ValueError: there are too many to keep.
        """
        if not isinstance(event, dict):
            self.trace.strange += 1
            return
        kind = event.get("ph")
        category = event.get("cat")
        lane = LANES.get(category) if category is None or isinstance(category, str) else None
        if kind == "s" and category == "fwdbwd":
            begin_ns = _ns(event.get("ts"))
            if begin_ns is not None:
                self.trace.forward_marks.append(begin_ns)
            return
        if kind != "X" or lane is None:
            return
        begin_ns, length_ns, name = _ns(event.get("ts")), _ns(event.get("dur", 0)), event.get("name")
        if begin_ns is None or length_ns is None or not isinstance(name, str):
            self.trace.strange += 1
            return
        self.trace.events += 1
        self._latest_ns = max(self._latest_ns, begin_ns + length_ns)
        if self.trace.events > MAX_EVENTS:
            raise ValueError(f"more than {MAX_EVENTS:,} events: the remaining ones were not read")
        arguments = event.get("args")
        facts = arguments if isinstance(arguments, dict) else {}
        if self.trace.pid is None and lane == "op":
            self.trace.pid = _count(event.get("pid"), least=0, most=MAX_NS)
        self._by_lane[lane](name, facts, begin_ns, begin_ns + length_ns, event.get("tid"))

    def member(self, name: str, value: Any) -> None:
        """A member of the document other than its events: rank, host, base time, process groups."""
        trace = self.trace
        if name == "baseTimeNanoseconds" and type(value) is int and 0 <= value < MAX_NS:
            trace.base_ns = value
        elif name == "host_name" and isinstance(value, str):
            trace.host = plain(value) or None
        elif name == "distributedInfo" and isinstance(value, dict):
            trace.rank = _count(value.get("rank"), least=0)
            trace.ranks = _count(value.get("world_size"), least=1)
            if isinstance(value.get("nccl_version"), str):
                trace.versions["nccl"] = plain(value["nccl_version"])[:40]
            trace.groups = dict(_groups(value.get("pg_config")))

    def finished(self) -> Trace:
        """The trace, its moments counted from 1970."""
        trace, base_ns = self.trace, self.trace.base_ns
        if not base_ns:
            return trace
        if base_ns + self._latest_ns >= MAX_NS:
            trace.fault = trace.fault or "its times are implausible for any clock: only their differences were read"
            return trace
        for columns in (trace.ops, trace.autograd, trace.accumulating, trace.finishing, trace.kernels, trace.copies):
            _shift(columns, base_ns)
        _shift(trace.launches, base_ns)
        if len(trace.forward_marks):
            np.frombuffer(trace.forward_marks, dtype=np.int64)[:] += base_ns
        trace.annotations = [
            replace(one, begin_ns=one.begin_ns + base_ns, end_ns=one.end_ns + base_ns) for one in trace.annotations
        ]
        for op in (*trace.queued, *trace.run):
            op.begin_ns += base_ns
            op.end_ns += base_ns
        return trace

    def _op(self, name: str, arguments: Arguments, begin: int, end: int, tid: object) -> None:
        trace, thread = self.trace, self._thread(tid)
        trace.ops.add(begin, end, thread)
        if name.startswith(classify.AUTOGRAD):
            trace.autograd.add(begin, end, thread)
            if classify.ACCUMULATE in name:
                trace.accumulating.add(begin, end, thread)
        elif name.startswith(("c10d::", classify.PARAMETERS)):
            if (caller := rank_in_call(arguments)) is not None:
                trace.callers.add(caller)
            self._keep(trace.queued, _described(name, arguments, begin, end, thread))
        elif name.startswith(classify.FINISHING):
            trace.finishing.add(begin, end, thread)
        elif name == "forward":  # of a scripted module
            self._note(name, arguments, begin, end, tid)

    def _note(self, name: str, arguments: Arguments, begin: int, end: int, tid: object) -> None:
        trace, thread = self.trace, self._thread(tid)
        if name.startswith(classify.HOST_BACKENDS):
            self._keep(trace.run, _described(name, arguments, begin, end, thread))
        elif name.startswith(classify.DEVICE_BACKENDS):
            self._keep(trace.queued, _described(name, arguments, begin, end, thread))
        elif (marked := classify.mark(name)) is not None:
            mark, number = marked
            self._keep(
                trace.annotations,
                Annotation(mark=mark, begin_ns=begin, end_ns=end, thread=thread, number=number),
            )

    def _kernel(self, name: str, arguments: Arguments, begin: int, end: int, tid: object) -> None:
        self.trace.on_device = True
        is_collective, family = classify.collective_kernel(name, arguments)
        number = _correlation(arguments)
        if not is_collective:
            self.trace.kernels.add(begin, end, number)
            return
        op = _described(name, arguments, begin, end, self._thread(tid, "device"), family=family, correlation=number)
        op.on_device = True
        self._keep(self.trace.run, op)

    def _copy(self, name: str, arguments: Arguments, begin: int, end: int, _: object) -> None:
        self.trace.on_device = True
        columns = self.trace.copies if "HtoD" in name else self.trace.kernels  # other copies are the device's own work
        columns.add(begin, end, _correlation(arguments))

    def _launch(self, _: str, arguments: Arguments, begin: int, end: int, __: object) -> None:
        number = _correlation(arguments)
        if number != UNKNOWN:
            self.trace.launches.add(begin, end, number)

    def _keep(self, kept: list[Any], one: Any) -> None:
        if len(kept) >= MAX_KEPT:
            raise ValueError(f"more than {MAX_KEPT:,} collectives or annotations: the remaining ones were not read")
        kept.append(one)

    def _thread(self, tid: object, where: str = "host") -> int:
        key = (where, tid if isinstance(tid, (int, str)) else None)
        number = self._threads.get(key)
        if number is None:
            if len(self._threads) >= MAX_THREADS:
                raise ValueError(f"more than {MAX_THREADS:,} threads: the remaining events were not read")
            number = self._threads[key] = len(self._threads)
        return number


def plain(text: str) -> str:
    """A name safe to store: bounded, without lone surrogates.

    >>> plain("node\\ud800-1")
    'node?-1'
    """
    return text[:MAX_NAME].encode("utf-8", "replace").decode()


def _described(
    name: str,
    arguments: Arguments,
    begin: int,
    end: int,
    thread: int,
    *,
    family: str | None = None,
    correlation: int = UNKNOWN,
) -> Op:
    """A collective described by its metadata, or else by its name."""
    collective = arguments.get("Collective name")
    if isinstance(collective, str):
        family = classify.operation(collective)
    elif family is None and correlation == UNKNOWN and not name.startswith(classify.PARAMETERS):
        family = classify.operation(name)
    types = arguments.get("Input type")
    dtype = arguments.get("dtype") or (types[0] if isinstance(types, list) and types else None)
    ranks = arguments.get("Process Group Ranks")
    group = arguments.get("Process Group Name")
    inputs = arguments.get("Concrete Inputs")
    in_elements = _count(arguments.get("In msg nelems"), least=0, most=classify.MAX_ELEMENTS)
    return Op(
        family=family,
        begin_ns=begin,
        end_ns=end,
        thread=thread,
        elements=classify.elements(arguments.get("Input Dims"), dtype) if in_elements is None else in_elements,
        out_elements=_count(arguments.get("Out msg nelems"), least=0, most=classify.MAX_ELEMENTS),
        dtype=classify.dtype_name(dtype),
        item_bytes=classify.item_bytes(dtype),
        group=group_name(group, ranks) if isinstance(group, str) else None,
        group_ranks=_count(arguments.get("Group size"), least=1),
        seq=_count(arguments.get("Seq"), least=0, most=MAX_NS),
        correlation=correlation,
        is_certain=isinstance(collective, str) or not name.startswith(classify.PARAMETERS),
        blocks=isinstance(inputs, list) and "False" in inputs,
    )


def rank_in_call(arguments: Arguments) -> int | None:
    """The rank that made a call: the entry at its place in the group of the group's ranks, which may be cut short.

    None where the call says whom it is from or to instead, as a broadcast does its root (``ProcessGroupNCCL.cpp``).

    >>> call = {"Collective name": "allreduce", "Rank": 1}
    >>> rank_in_call(call | {"Process Group Ranks": "[2, 5]"}), rank_in_call(call)
    (5, None)
    >>> rank_in_call(call | {"Process Group Ranks": "[0, 1, ...]", "Process Group Description": "default_pg"})
    1
    >>> rank_in_call({"Collective name": "broadcast", "Rank": 1, "Process Group Ranks": "[2, 5]"})
    """
    collective, listed = arguments.get("Collective name"), arguments.get("Process Group Ranks")
    place = _count(arguments.get("Rank"), least=0)
    if place is None or not isinstance(collective, str) or classify.operation(collective) not in BY_THEIR_CALLER:
        return None
    if arguments.get("Process Group Description") == "default_pg":
        return place
    ranks = RANKS.findall(listed[:MAX_LIST]) if isinstance(listed, str) and "..." not in listed else []
    return int(ranks[place]) if place < len(ranks) else None


def group_name(name: str, ranks: object) -> str:
    """A name equal on all ranks of a group and different between groups, which group numbers may not be.

    >>> group_name("0", "[0, 1]"), group_name("1", None)
    ('0 [0, 1]', '1')
    """
    return plain(f"{name[:80]} {ranks[:100]}") if isinstance(ranks, str) and ranks not in ("", "[]") else plain(name)


def _groups(config: Any) -> Iterator[tuple[str, Group]]:
    for one in config[:MAX_THREADS] if isinstance(config, list) else []:
        if isinstance(one, dict) and isinstance(one.get("pg_name"), str):
            size = _count(one.get("pg_size"), least=1)
            if size is not None:
                yield one["pg_name"][:MAX_NAME], Group(name=plain(one["pg_name"]), ranks=size)


def _ns(us: Any) -> int | None:
    """A time of a trace in ns; None: it is not a valid time."""
    kind = type(us)
    if (kind is float or kind is int) and 0 <= us < MAX_US:  # false for NaN
        ns: int = round(us * 1000)
        return ns
    return None


def _count(value: Any, *, least: int, most: int = MAX_RANKS) -> int | None:
    return int(value) if type(value) is int and least <= value <= most else None


def _correlation(arguments: Arguments) -> int:
    number = _count(arguments.get("correlation"), least=0, most=MAX_NS)
    return UNKNOWN if number is None else number


def _shift(columns: Columns, base_ns: int) -> None:
    for one in (columns.begin, columns.end):
        if len(one):
            np.frombuffer(one, dtype=np.int64)[:] += base_ns
