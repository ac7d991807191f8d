"""Observe the collectives of a program, including the broadcast of buffers by DDP before forward.

The functions of ``torch.distributed`` are wrapped, which FSDP and SyncBatchNorm call too. The collectives of DDP's
backward run in C++ and are timed by ``recording.arrival``. Functional collectives, which DTensor uses, are in
``functional``; nothing is observed inside compiled code.
"""

from __future__ import annotations

import functools
import inspect
import time
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ....rundir.live.activity import OPERATIONS
from ...recording.recorder import Recorder
from ...recording.step_line import BACKWARD, COLLECTIVE
from ..inference.phases import NOT_SEEN
from ..inference.step_inference import StepInference
from ..safety import give_up, safely

RENAMED = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}
"""Newer names of functions, which the older ones call; both are recorded under the older name."""

POINT_TO_POINT = ("send", "recv", "isend", "irecv")
PACKAGES = ("bagua", "byteps", "deepspeed", "hivemind", "horovod", "mpi4py", "ray.util.collective", "torch_xla")
"""Modules that may exchange gradients without ``torch.distributed``."""

BARRIERS = ("barrier", "monitored_barrier")
ROOTS = ("src", "dst", "group_src", "group_dst")
NO_ROOTS = (None, None, None, None)
MOST_KINDS = 4096  # operations and sizes; further ones are not recorded


Call = Tuple[str, Any, Tuple[Any, ...], int, Any]
"""One collective: its operation, group (None: all ranks), ``ROOTS``, size in bytes and dtype."""

Describe = Callable[[Tuple[Any, ...], Dict[str, Any]], Call]
"""Describes a call by its arguments."""


class Signature:
    """The positions of the arguments of a function that describe a call."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name.strip("_")
        self._places = {parameter: place for place, parameter in enumerate(inspect.signature(function).parameters)}
        self._rooted = any(root in self._places for root in ROOTS)

    def describe(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Call:
        """One call, from its arguments."""
        if len(args) == 1 and not kwargs and not self._rooted and hasattr(args[0], "element_size"):
            return (
                self.name,
                None,
                NO_ROOTS,
                args[0].numel() * args[0].element_size(),
                args[0].dtype,
            )  # the common case
        roots = tuple(self.argument(name, args, kwargs) for name in ROOTS) if self._rooted else NO_ROOTS
        size, dtype = size_of((*args, *kwargs.values()) if kwargs else args)
        return (self.name, self.argument("group", args, kwargs), roots, size, dtype)

    def argument(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """What a call gives for parameter ``name``, or None."""
        if name in kwargs:
            return kwargs[name]
        place = self._places.get(name)
        return args[place] if place is not None and place < len(args) else None


class Collectives:
    """The collectives of this rank: their kinds, their sequence numbers in their groups, and those under way."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._kinds: Dict[Any, Tuple[int, str]] = {}
        self._numbers: Dict[str, int] = {}
        self._wrapped: Dict[Callable[..., Any], Callable[..., Any]] = {}
        self._calling = False
        self.first_ns = 0  # when the first one began since this was set to 0
        self.in_hook = False  # a communication hook works: what it waits for is the reduction
        self._joined: Optional[Dict[str, Any]] = None  # the process group, once this rank is in it
        self._unobserved: List[str] = []

    def watch(self) -> None:
        """Wrap the entry points; called once, after torch was imported."""
        import torch.distributed as dist  # noqa: PLC0415  this runs after torch was imported

        if not dist.is_available():
            return
        from torch.distributed import distributed_c10d  # noqa: PLC0415
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        for name in OPERATIONS:
            attribute = RENAMED[name] if hasattr(distributed_c10d, RENAMED.get(name, "")) else name
            function = getattr(distributed_c10d, attribute, None)
            if function is not None:
                observed = self.observed(name, function, Signature(name, function).describe)
                for module in (dist, distributed_c10d):
                    if getattr(module, attribute, None) is function:
                        setattr(module, attribute, observed)
                self._wrapped[function] = observed
        self._wrap_start(dist, distributed_c10d)
        for name in POINT_TO_POINT:
            self._wrap_unobserved(name, "send and receive", dist, distributed_c10d)
        if hasattr(dist, "rpc") and hasattr(dist.rpc, "init_rpc"):
            self._wrap_unobserved("init_rpc", "torch.distributed.rpc", dist.rpc, getattr(dist.rpc, "api", dist.rpc))
        self._wrap_wait(dist)
        self._wrap_buffers(DistributedDataParallel)

    def wait_imported(self, module: ModuleType) -> None:
        """Observe waits for collectives issued outside ``torch.distributed``, without identifying the collectives.

        Called when ``horovod.torch.mpi_ops`` was imported, in whose ``synchronize`` programs wait.
        """
        calls, wait = self._inference.deferred, module.synchronize

        @functools.wraps(wait)
        def observed(*args: Any, **kwargs: Any) -> Any:
            depth = calls.enter(COLLECTIVE)
            try:
                return wait(*args, **kwargs)
            finally:
                calls.leave(depth)

        module.synchronize = observed  # type: ignore[attr-defined]

    def added_to(self, in_graphs: Dict[Any, Any]) -> None:
        """Add our wrappers to ``in_graphs``, by which dynamo maps collectives to their traceable forms."""
        in_graphs.update({ours: in_graphs[name] for name, ours in self._wrapped.items() if name in in_graphs})

    def observed(
        self,
        name: str,
        function: Callable[..., Any],
        describe: Describe,
        pending: Callable[[Any], Any] = lambda answer: answer,
    ) -> Callable[..., Any]:
        """``function`` with its calls recorded as collectives ``name`` of ``OPERATIONS``.

        ``pending``: what is waited for later, from what the function answers; None: the call was over.
        """
        inference, calls, is_barrier = self._inference, self._inference.deferred, name in BARRIERS
        operation = OPERATIONS.index(name)

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if is_barrier:
                inference.is_beyond_evaluation()
            if self._calling:
                return function(*args, **kwargs)  # a collective inside another
            if self.in_hook and not kwargs.get("async_op"):
                self.first_ns = self.first_ns or time.monotonic_ns()
                return function(*args, **kwargs)
            depth, inside, begin = calls.collective_begins(operation)
            if depth == NOT_SEEN:
                return function(*args, **kwargs)
            self.first_ns = self.first_ns or begin
            self._calling = True
            try:
                answer = function(*args, **kwargs)
            finally:
                self._calling = False
                end = calls.collective_ends(depth)
            self._called((describe, args, kwargs, inside), pending, answer, (begin, end))
            return answer

        return observed

    def _called(
        self,
        call: Tuple[Describe, Tuple[Any, ...], Dict[str, Any], int],
        pending: Callable[[Any], Any],
        answer: Any,
        when: Tuple[int, int],
    ) -> None:
        begin, end = when
        try:
            describe, args, kwargs, inside = call
            described = op, group, roots, size, dtype = describe(args, kwargs)
            key = (op, size, dtype, id(group), roots, inside)
            kind_and_name = self._kinds.get(key) or self._new_kind(described, inside, key)
            if kind_and_name is None:
                return
            kind, name = kind_and_name
            number = self._numbers[name] = self._numbers.get(name, -1) + 1
            work = pending(answer)
            if work is None:
                self._inference.deferred.collective(kind, number, begin, end - begin, end)
                return
            self._inference.works.starts(work, kind, number, when, in_backward=inside == BACKWARD)
        except Exception as error:  # noqa: BLE001  no error of ours may reach the program
            give_up(self, "collectives", error, "_called")

    def _new_kind(self, call: Call, inside: int, key: Any) -> Optional[Tuple[int, str]]:
        """The number of a new kind of collectives, and the name of their group; None if we are not in the group."""
        recorder = self._inference.recorder
        if recorder is None or len(self._kinds) >= MOST_KINDS:
            return None
        kind = self._announced(recorder, call, recorder.name_of(inside))
        if kind is not None:
            self._kinds[key] = kind
        return kind

    def _announced(self, recorder: Recorder, call: Call, inside: Optional[str]) -> Optional[Tuple[int, str]]:
        import torch.distributed as dist  # noqa: PLC0415

        op, group, roots, size, dtype = call
        group = group if group is not None else dist.group.WORLD
        if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
            return None
        in_job, in_group = [next((root for root in pair if root is not None), None) for pair in pairs(roots)]
        if in_job is None and in_group is not None:
            in_job = dist.get_global_rank(group, in_group)
        now = time.monotonic_ns()
        event = {
            "kind": "collective_kind",
            "id": len(self._kinds),
            "op": op,
            "size_bytes": size,
            "dtype": None if dtype is None else str(dtype).rpartition(".")[2],
            "group": group.group_name,
            "group_ranks": group.size(),
            "root": in_job,
            "inside": inside,
            "t_ns": now,
        }
        recorder.journal.event(event, now)
        return len(self._kinds), group.group_name

    def _wrap_start(self, dist: Any, c10d: Any) -> None:
        """A process that joins a process group becomes a rank; when it leaves it, its training is over."""
        start = c10d.init_process_group

        @functools.wraps(start)
        def observed(*args: Any, **kwargs: Any) -> Any:
            answer = start(*args, **kwargs)
            self._inference.ready()
            self._join(dist)
            return answer

        dist.init_process_group = c10d.init_process_group = observed
        leave = c10d.destroy_process_group

        @functools.wraps(leave)
        def observed_leave(*args: Any, **kwargs: Any) -> Any:
            self._inference.checkpoints.training_is_over()
            return leave(*args, **kwargs)

        dist.destroy_process_group = c10d.destroy_process_group = observed_leave

    @safely("collectives")
    def _join(self, dist: Any) -> None:
        """This rank has joined the process group of its job."""
        self._joined = {"backend": str(dist.get_backend())[:100], "ranks": dist.get_world_size()}
        self._write_joined()

    @safely("collectives")
    def unobserved(self, name: str) -> None:
        """The program may exchange gradients by ``name``, which is not recorded."""
        if name not in self._unobserved:
            self._unobserved.append(name)
            self._write_joined()

    def _write_joined(self) -> None:
        recorder = self._inference.recorder
        if recorder is not None and self._joined is not None:
            now = time.monotonic_ns()
            event = {"kind": "process_group", **self._joined, "unobserved": list(self._unobserved), "t_ns": now}
            recorder.journal.event(event, now)

    def _wrap_unobserved(self, name: str, called: str, *modules: Any) -> None:
        """Note that function ``name`` of ``modules`` is called, without recording its calls."""
        function = getattr(modules[0], name, None)
        if function is None:
            return

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if called not in self._unobserved:
                self.unobserved(called)
            return function(*args, **kwargs)

        for module in modules:
            if getattr(module, name, None) is function:
                setattr(module, name, observed)

    def _wrap_wait(self, dist: Any) -> None:
        works, calls, wait = self._inference.works, self._inference.deferred, dist.Work.wait

        @functools.wraps(wait)
        def observed(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not works.is_pending(work):
                return wait(work, *args, **kwargs)  # the common case: torch waits this way for synchronous ones
            depth = calls.enter(COLLECTIVE)
            if depth == NOT_SEEN:
                return wait(work, *args, **kwargs)
            begin = time.monotonic_ns()
            try:
                return wait(work, *args, **kwargs)
            finally:
                end = time.monotonic_ns()
                calls.leave(depth)
                works.waited(work, begin, end)

        dist.Work.wait = observed

    def _wrap_buffers(self, parallel: Any) -> None:
        """DDP broadcasts its buffers before forward; unobserved, waiting for a late rank would count as forward."""
        broadcast = parallel._distributed_broadcast_coalesced

        known: Dict[Any, Tuple[Any, Call]] = {}  # a network may have hundreds of buffers, the same in each step

        def describe(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Call:
            network, tensors = args[:2]
            root = kwargs.get("authoritative_rank", args[3] if len(args) > 3 else 0)
            which = (id(network), len(tensors), tensors[0].dtype if tensors else None, root)
            network_reference, call = known.get(which, (None, None))
            if network_reference is None or network_reference() is not network or call is None:
                call = ("broadcast", network.process_group, (None, None, root, None), *size_of([tensors]))
                known[which] = (weakref.ref(network), call)
            return call

        parallel._distributed_broadcast_coalesced = self.observed("broadcast", broadcast, describe)


def pairs(roots: Tuple[Any, ...]) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """``ROOTS`` as ranks in the job, then as ranks in the group."""
    return roots[:2], roots[2:]


def size_of(given: Iterable[Any]) -> Tuple[int, Any]:
    """The size in bytes of the largest tensor, or list of tensors, among the arguments, and its dtype."""
    largest, dtype = 0, None
    for value in given:
        size = 0
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if hasattr(tensor, "element_size"):
                size += tensor.numel() * tensor.element_size()
                dtype = tensor.dtype
        largest = max(largest, size)
    return largest, dtype
