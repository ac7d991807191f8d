"""See a program call collectives, and see those that DDP hides in forward, where it broadcasts its buffers.

Wrapped are the functions of ``torch.distributed``, which FSDP and SyncBatchNorm call too. Collectives of DDP's own
backward run in C++ and are known by ``arrival``; functional collectives inside compiled code are not seen.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from ...rundir.live import NOTHING, OPERATION, OPERATIONS
from ..recorder import COLLECTIVE, Recorder
from .safety import safely
from .watcher import NOT_SEEN, Watcher

RENAMED = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}
"""Newer names of functions, which the older ones call; both are recorded under the older one."""

IN_GRAPHS = ("torch.distributed._functional_collectives", "traceable_collective_remaps")
"""What dynamo puts into a graph where a program calls a collective: it must know ours for what they stand for."""

BARRIERS = ("barrier", "monitored_barrier")
ROOTS = ("src", "dst", "group_src", "group_dst")
MOST_PENDING = 4096  # asynchronous collectives that nobody has waited for
MOST_KINDS = 4096  # sizes of every kind; a program with more has no kinds


class Signature:
    """Where a function takes what we want to know of a call."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name.strip("_")
        self._places = {parameter: place for place, parameter in enumerate(inspect.signature(function).parameters)}

    def seen(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Seen:
        """What one call asks for."""
        roots = tuple(self._argument(name, args, kwargs) for name in ROOTS)
        size, dtype = size_of([*args, *kwargs.values()])
        return Seen(self.name, self._argument("group", args, kwargs), roots, size, dtype)

    def _argument(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        place = self._places.get(name)
        return args[place] if place is not None and place < len(args) else None


class Seen:
    """What one collective does: its operation, group (None: of all ranks), ``ROOTS``, bytes and type."""

    __slots__ = ("dtype", "group", "op", "roots", "size")

    def __init__(self, op: str, group: Any, roots: Tuple[Any, ...], size: int, dtype: Optional[str]) -> None:
        self.op = op
        self.group = group
        self.roots = roots
        self.size = size
        self.dtype = dtype


class Collectives:
    """The collectives of this rank: their kinds, their numbers in their groups, and those still under way."""

    def __init__(self, watcher: Watcher) -> None:
        self.session = watcher.session
        self.failed = watcher.failed
        self._watcher = watcher
        self._kinds: Dict[Any, Tuple[int, str]] = {}
        self._numbers: Dict[str, int] = {}
        self._pending: Dict[int, Tuple[int, int, int]] = {}
        self._calling = False

    def watch(self) -> None:
        """Wrap the entry points; called once, after torch was imported."""
        import torch.distributed as dist  # noqa: PLC0415  this runs after torch was imported

        if not dist.is_available():
            return
        from torch.distributed import distributed_c10d  # noqa: PLC0415
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        compiled = getattr(sys.modules.get(IN_GRAPHS[0]), IN_GRAPHS[1], {})
        for name in OPERATIONS:
            attribute = RENAMED[name] if hasattr(distributed_c10d, RENAMED.get(name, "")) else name
            function = getattr(distributed_c10d, attribute, None)
            if function is not None:
                observed = self._observed(name, function, Signature(name, function).seen)
                for module in (dist, distributed_c10d):
                    if getattr(module, attribute, None) is function:
                        setattr(module, attribute, observed)
                if function in compiled:
                    compiled[observed] = compiled[function]
        self._wrap_start(dist, distributed_c10d)
        self._wrap_wait(dist)
        self._wrap_buffers(DistributedDataParallel)

    def _observed(
        self, name: str, function: Callable[..., Any], describe: Callable[[Tuple[Any, ...], Dict[str, Any]], Seen]
    ) -> Callable[..., Any]:
        watcher = self._watcher
        operation = OPERATIONS.index(name)

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if name in BARRIERS:
                watcher.is_beyond_evaluation()
            inside = watcher.recorder.innermost if watcher.recorder is not None else None
            depth = NOT_SEEN if self._calling else watcher.enter(COLLECTIVE)
            if depth == NOT_SEEN or watcher.recorder is None:
                return function(*args, **kwargs)  # one inside another among them
            self._calling = True
            live = watcher.recorder.live
            begin = time.monotonic_ns()
            live[OPERATION] = operation
            try:
                work = function(*args, **kwargs)
            finally:
                end = time.monotonic_ns()
                live[OPERATION] = NOTHING
                self._calling = False
                watcher.leave(depth)
            self._called(lambda: describe(args, kwargs), work, (begin, end), inside)
            return work

        return observed

    @safely("collectives")
    def _called(self, describe: Callable[[], Seen], work: Any, times: Tuple[int, int], inside: Optional[str]) -> None:
        recorder = self._watcher.recorder
        found = None if recorder is None else self._kind(recorder, describe(), inside)
        if recorder is None or found is None:
            return
        kind, group = found
        number = self._numbers[group] = self._numbers.get(group, -1) + 1
        begin, end = times
        if work is None:
            recorder.collective(kind, number, begin, end - begin, end)
            return
        pending = self._watcher.reducing if inside == "backward" else self._pending
        if len(pending) >= MOST_PENDING:
            pending.clear()
        pending[id(work)] = (kind, number, begin)

    @safely("collectives")
    def _waited(self, work: Any, begin: int, end: int) -> None:
        pending = self._pending.pop(id(work), None) or self._watcher.reducing.pop(id(work), None)
        recorder = self._watcher.recorder
        if pending is not None and recorder is not None:
            kind, number, called = pending
            recorder.collective(kind, number, called, end - begin, end)

    def _kind(self, recorder: Recorder, seen: Seen, inside: Optional[str]) -> Optional[Tuple[int, str]]:
        """Number of this kind of collective, and the name of its group; None where we are not in the group."""
        key = (seen.op, seen.size, seen.dtype, id(seen.group), seen.roots, inside)
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) < MOST_KINDS:
            kind = self._announced(recorder, seen, inside)
            if kind is not None:
                self._kinds[key] = kind
        return kind

    def _announced(self, recorder: Recorder, seen: Seen, inside: Optional[str]) -> Optional[Tuple[int, str]]:
        import torch.distributed as dist  # noqa: PLC0415

        group = seen.group if seen.group is not None else dist.group.WORLD
        if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
            return None
        in_job, in_group = [next((root for root in pair if root is not None), None) for pair in pairs(seen.roots)]
        if in_job is None and in_group is not None:
            in_job = dist.get_global_rank(group, in_group)
        now = time.monotonic_ns()
        event = {
            "kind": "collective_kind",
            "id": len(self._kinds),
            "op": seen.op,
            "size_bytes": seen.size,
            "dtype": seen.dtype,
            "group": group.group_name,
            "group_ranks": group.size(),
            "root": in_job,
            "inside": inside,
            "t_ns": now,
        }
        recorder.journal.event(event, now)
        return len(self._kinds), group.group_name

    def _wrap_start(self, dist: Any, c10d: Any) -> None:
        """A process that joins a process group is a rank."""
        start = c10d.init_process_group

        @functools.wraps(start)
        def observed(*args: Any, **kwargs: Any) -> Any:
            answer = start(*args, **kwargs)
            self._watcher.ready()
            return answer

        dist.init_process_group = c10d.init_process_group = observed

    def _wrap_wait(self, dist: Any) -> None:
        watcher, wait = self._watcher, dist.Work.wait

        @functools.wraps(wait)
        def observed(work: Any, *args: Any, **kwargs: Any) -> Any:
            known = id(work) in self._pending or id(work) in watcher.reducing
            depth = watcher.enter(COLLECTIVE) if known else NOT_SEEN
            if depth == NOT_SEEN:
                return wait(work, *args, **kwargs)
            begin = time.monotonic_ns()
            try:
                return wait(work, *args, **kwargs)
            finally:
                end = time.monotonic_ns()
                watcher.leave(depth)
                self._waited(work, begin, end)

        dist.Work.wait = observed

    def _wrap_buffers(self, parallel: Any) -> None:
        """DDP broadcasts its buffers before forward; without this, waiting for a late rank would pass for forward."""
        broadcast = parallel._distributed_broadcast_coalesced

        def describe(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Seen:
            network, tensors = args[:2]
            root = kwargs.get("authoritative_rank", args[3] if len(args) > 3 else 0)
            size, dtype = size_of([tensors])
            return Seen("broadcast", network.process_group, (None, None, root, None), size, dtype)

        parallel._distributed_broadcast_coalesced = self._observed("broadcast", broadcast, describe)


def pairs(roots: Tuple[Any, ...]) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """``ROOTS`` as numbers in the job, then as numbers in the group."""
    return roots[:2], roots[2:]


def size_of(given: Iterable[Any]) -> Tuple[int, Optional[str]]:
    """The largest of the tensors, or lists of them, that a collective was given, in bytes, and their type."""
    largest, dtype = 0, None
    for value in given:
        tensors = value if isinstance(value, (list, tuple)) else (value,)
        size = 0
        for tensor in tensors:
            if hasattr(tensor, "element_size"):
                size += tensor.numel() * tensor.element_size()
                dtype = str(tensor.dtype).rpartition(".")[2]
        largest = max(largest, size)
    return largest, dtype
