"""One trace in memory: a few events as records, and columns for the many of which only the times matter."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allpull.traces.classify import Mark
from allpull.traces.intervals import Stretches, Times, union

UNKNOWN = -1
"""In a column: unknown."""
TOUCH_NS = 1_000
"""Kernels that overlap by less follow each other: traces have µs, and drivers convert times of a device inexactly."""
AT_ONCE_NS = 20_000
"""In which a kernel begins that had waited for another one, and from its launch where it waits for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group: ``name`` is equal on all its ranks; ``ranks``: how many it has."""

    name: str
    ranks: int


@dataclass(slots=True, kw_only=True)  # not frozen: the base time of a file may come at its end
class Op:
    """A collective, queued by the program or executed by a back-end; None: unknown.

    ``family`` is torch's name of the operation (``classify.operation``). ``thread`` numbers the threads of a trace.
    ``blocks``: the program called it synchronously (``async_op=False``), as DDP never does.
    """

    family: str | None
    begin_ns: int
    end_ns: int
    thread: int
    elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    item_bytes: int | None = None
    group: str | None = None
    group_ranks: int | None = None
    seq: int | None = None
    correlation: int = UNKNOWN
    is_certain: bool = True
    blocks: bool = False
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A part of a step, annotated by the program or by torch; ``number`` is the step's number."""

    mark: Mark
    begin_ns: int
    end_ns: int
    thread: int
    number: int | None = None


class Columns:
    """Begin and end of many events, with one more number each: 24 bytes per event."""

    def __init__(self) -> None:
        self.begin = array("q")
        self.end = array("q")
        self.tag = array("q")

    def __len__(self) -> int:
        return len(self.begin)

    def add(self, begin: int, end: int, tag: int) -> None:
        """One event."""
        self.begin.append(begin)
        self.end.append(end)
        self.tag.append(tag)

    def arrays(self) -> tuple[Times, Times, Times]:
        """Begins, ends and tags."""
        begin, end, tag = (np.frombuffer(one, dtype=np.int64) for one in (self.begin, self.end, self.tag))
        return begin, end, tag

    def stretches(self, tag: int | None = None) -> Stretches:
        """When any of them was active, or any of those with one tag."""
        begin, end, tags = self.arrays()
        return union(begin, end) if tag is None else union(begin[tags == tag], end[tags == tag])


@dataclass(kw_only=True, eq=False)
class Trace:
    """One trace of one rank; moments in ns of the real-time clock of its host.

    ``ops`` and ``autograd`` (tag: thread), ``accumulating`` and ``finishing`` (the same) are of the host; ``kernels``
    and ``copies`` (tag: correlation) of the device, and ``launches`` what issued them. ``forward_marks`` are begins of
    operations whose gradient was computed in the trace. ``strange`` counts events with impossible times;
    ``fault`` says why reading stopped early; ``on_device`` whether an accelerator was profiled too. ``rank`` is what it
    states of itself, and ``callers`` are the ranks that made its collectives, by these.
    """

    rank: int | None = None
    callers: set[int] = field(default_factory=set)
    ranks: int | None = None
    host: str | None = None
    pid: int | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    queued: list[Op] = field(default_factory=list)
    run: list[Op] = field(default_factory=list)
    ops: Columns = field(default_factory=Columns)
    autograd: Columns = field(default_factory=Columns)
    accumulating: Columns = field(default_factory=Columns)
    finishing: Columns = field(default_factory=Columns)
    kernels: Columns = field(default_factory=Columns)
    copies: Columns = field(default_factory=Columns)
    launches: Columns = field(default_factory=Columns)
    forward_marks: array[int] = field(default_factory=lambda: array("q"))
    base_ns: int = 0
    events: int = 0
    strange: int = 0
    read_bytes: int = 0
    fault: str | None = None
    on_device: bool = False

    @cached_property
    def computing(self) -> Stretches:
        """When any kernel was computing on the device."""
        return self.kernels.stretches()

    @cached_property
    def copying(self) -> Stretches:
        """When the device was copying."""
        return self.copies.stretches()

    @cached_property
    def exchanging(self) -> Stretches:
        """When the device was running any collective."""
        ran = [op for op in self.run if op.on_device]
        return union([op.begin_ns for op in ran], [op.end_ns for op in ran])

    @cached_property
    def launched(self) -> tuple[Times, Times]:
        """Correlations in ascending order, and the begin of what launched each."""
        begin, _, correlation = self.launches.arrays()
        order = np.argsort(correlation, kind="stable")
        return correlation[order], begin[order]

    def launched_at(self, correlation: Times) -> Times:
        """When the host launched each of these; ``UNKNOWN`` where the trace does not say."""
        known, begin = self.launched
        if not known.size:
            return np.full(correlation.shape, UNKNOWN, dtype=np.int64)
        place = np.minimum(np.searchsorted(known, correlation), known.size - 1)
        is_known: NDArray[np.bool_] = (known[place] == correlation) & (correlation >= 0)
        return np.where(is_known, begin[place], UNKNOWN)

    @cached_property
    def _issued(self) -> tuple[Times, Times]:
        """When each computing kernel was launched, ascending, and the latest end of all kernels launched until then."""
        _, end, correlation = self.kernels.arrays()
        at = self.launched_at(correlation)
        order = np.argsort(at, kind="stable")[int((at == UNKNOWN).sum()) :]
        return at[order], np.maximum.accumulate(end[order])

    def ended_of_launched_before(self, t_ns: int) -> int | None:
        """When the device had finished all compute that the host launched by ``t_ns``; None: none, or unknown."""
        at, latest_end = self._issued
        place = int(np.searchsorted(at, t_ns)) - 1
        return int(latest_end[place]) if place >= 0 else None

    @cached_property
    def _begun(self) -> tuple[Times, Times]:
        """The begin of each computing kernel, ascending, and when it was launched."""
        begin, _, correlation = self.kernels.arrays()
        order = np.argsort(begin, kind="stable")
        return begin[order], self.launched_at(correlation[order])

    @cached_property
    def _exchanged(self) -> Times:
        """The ends of the collectives on the device, ascending."""
        return np.sort(np.array([op.end_ns for op in self.run if op.on_device], dtype=np.int64))

    def launch_of_awaiting(self, t_ns: int) -> int | None:
        """When the host launched the kernel that awaited the collective that ended at ``t_ns``; None: there is none.

        It began as soon as that had ended, within ``AT_ONCE_NS``, as the last collective before it, and had been
        launched for so long. One that was launched later did not await it.
        """
        begin, launched = self._begun
        place = int(np.searchsorted(begin, t_ns - TOUCH_NS))
        if place >= begin.size or begin[place] > t_ns + AT_ONCE_NS:
            return None
        last = int(np.searchsorted(self._exchanged, begin[place] + TOUCH_NS, side="right")) - 1
        if last >= 0 and self._exchanged[last] > t_ns:
            return None
        return int(launched[place]) if UNKNOWN != launched[place] < t_ns - AT_ONCE_NS else None

    @cached_property
    def accumulates(self) -> Stretches:
        """When a gradient was complete and its hooks were called."""
        return self.accumulating.stretches()

    @cached_property
    def differentiates(self) -> Stretches:
        """When autograd was running any function."""
        return self.autograd.stretches()

    @cached_property
    def marked_backward(self) -> Stretches:
        """When annotations put the program in backward."""
        return self.marked("backward")

    def busy(self, thread: int) -> Stretches:
        """When a thread of the host was executing any operation."""
        if thread not in self._busy:
            self._busy[thread] = self.ops.stretches(thread)
        return self._busy[thread]

    @cached_property
    def _busy(self) -> dict[int, Stretches]:
        return {}

    def of(self, mark: Mark) -> list[Annotation]:
        """The annotations of one kind, by begin."""
        return sorted((one for one in self.annotations if one.mark == mark), key=lambda one: one.begin_ns)

    def marked(self, mark: Mark) -> Stretches:
        """When annotations put the program in one part of a step."""
        annotations = self.of(mark)
        return union([one.begin_ns for one in annotations], [one.end_ns for one in annotations])


Arguments = dict[str, Any]
