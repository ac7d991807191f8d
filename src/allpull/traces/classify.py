"""Classify the events of a profiler trace: by category and metadata first, by name second.

Names change: NCCL's kernels were ``ncclAllReduceRingLLKernel_sum_f32``, then ``ncclKernel_AllReduce_RING_LL_Sum_float``
and then ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``; RCCL's are ``ncclDevKernel_Generic_4``, which names no operation.
What torch itself records (``Collective name``, the operation that launched the kernel) takes precedence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

Lane = Literal["op", "note", "kernel", "copy", "launch"]

LANES: Mapping[object, Lane] = {
    "cpu_op": "op",
    "Operator": "op",  # before torch 1.12
    None: "op",  # of the profiler before Kineto, which had no categories
    "user_annotation": "note",
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "copy",
    "Memset": "copy",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "Runtime": "launch",
    "xpu_runtime": "launch",
    "privateuse1_runtime": "launch",
    "mtia_runtime": "launch",
}
"""Categories of events that matter; all others (Python stacks, flows, counters) are ignored."""

AUTOGRAD = "autograd::engine::evaluate_function"
ACCUMULATE = "AccumulateGrad"
FINISHING = ("torch.distributed.ddp.reducer::copy_bucket_to_grad", "torch.distributed.ddp.reducer::")
PARAMETERS = "record_param_comms"
HOST_BACKENDS = ("gloo:", "ucc:", "mpi:")
"""Their annotations are the collective itself, on its own thread; those of device back-ends only launch it."""
DEVICE_BACKENDS = ("nccl:", "rccl:", "xccl:", "hccl:", "cncl:", "mccl:")

Mark = Literal["step", "input", "forward", "backward", "optimizer", "evaluation", "checkpoint"]

_STEP = re.compile(r"ProfilerStep#(\d{1,12})")
_LABELS: Mapping[str, Mark] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "optimizer step": "optimizer",
    "data": "input",
    "data load": "input",
    "data loading": "input",
    "load batch": "input",
    "wait for batch": "input",
    "dataloader": "input",
    "evaluation": "evaluation",
    "evaluate": "evaluation",
    "validation": "evaluation",
    "checkpoint": "checkpoint",
    "save checkpoint": "checkpoint",
}
"""Common labels of ``record_function``, without ``#``, ``_`` and case."""
_FORWARDS = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")

_FAMILIES = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallsingle": "all_to_all",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "sendrecv": "send_recv",
}
"""Operations by their names without underscores: torch spells most of them in three ways, NCCL in a fourth."""

MADE_OF: Mapping[str, frozenset[str]] = {
    "barrier": frozenset({"barrier", "all_reduce"}),
    "all_to_all": frozenset({"all_to_all", "send_recv"}),
    "gather": frozenset({"gather", "send_recv"}),
    "scatter": frozenset({"scatter", "send_recv"}),
    "send": frozenset({"send", "send_recv"}),
    "recv": frozenset({"recv", "send_recv"}),
    "all_gather": frozenset({"all_gather", "broadcast", "send_recv"}),
    "reduce_scatter": frozenset({"reduce_scatter", "reduce"}),
}
"""Operations that back-ends implement with other kernels; any other operation has kernels of its own name."""

MADE_ON_HOSTS: Mapping[str, frozenset[str]] = {"reduce_scatter": frozenset({"all_reduce"})}
"""Those that Gloo alone implements so: ``_reduce_scatter_base`` reduces all, and each rank keeps its part."""

_LIBRARY = re.compile(r"[nr]ccl|msccl|oneccl|xccl|hccl|cncl|mccl|multimem_all|(?:one|two)_shot_all", re.IGNORECASE)
_KERNEL_OPS = re.compile(
    r"AllReduce|all_reduce|AllGather|all_gather|ReduceScatter|reduce_scatter|AllToAll|SendRecv|Broadcast|Reduce",
    re.IGNORECASE,
)
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "longint", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "float16", "short", "int16", "shortint"), 2),
    **dict.fromkeys(("char", "byte", "bool", "unsignedchar", "signedchar", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
    "complexdouble": 16,
}
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "long": "int64",
    "longint": "int64",
    "int": "int32",
    "char": "int8",
    "byte": "uint8",
    "unsignedchar": "uint8",
}
MAX_ELEMENTS = 2**50  # of one message: more exceeds any memory


def mark(name: str) -> tuple[Mark, int | None] | None:
    """The part of a step that a host annotation marks, and the number of the step if it marks one.

    >>> mark("ProfilerStep#12"), mark("Optimizer.step#SGD.step"), mark("## data_load ##"), mark("metrics")
    (('step', 12), ('optimizer', None), ('input', None), None)
    """
    if name.startswith("ProfilerStep#"):
        match = _STEP.fullmatch(name)
        return ("step", int(match.group(1))) if match else None
    if name.startswith("enumerate(DataLoader)#"):
        return "input", None
    if name.startswith("Optimizer.step#"):
        return "optimizer", None
    if name.startswith(_FORWARDS):
        return "forward", None
    if len(name) > 40:
        return None
    word = _LABELS.get(name.strip("# ").replace("_", " ").lower())
    return None if word is None else (word, None)


def operation(name: str) -> str | None:
    """The collective that torch calls ``name``; None: it is no collective.

    >>> operation("c10d::_allgather_base_"), operation("gloo:all_reduce"), operation("c10d::reducer_x")
    ('all_gather', 'all_reduce', None)
    """
    return _FAMILIES.get(name.rpartition(":")[2].replace("_", "").lower())


def collective_kernel(name: str, arguments: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Whether a kernel is a collective, and which one, if known.

    >>> collective_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {})
    (True, 'all_reduce')
    >>> collective_kernel("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", {})
    (True, None)
    >>> collective_kernel("void reduce_kernel<512, 1>(int)", {}), collective_kernel("x", {"Collective name": "barrier"})
    ((False, None), (True, 'barrier'))
    """
    metadata = arguments.get("Collective name")
    if isinstance(metadata, str):
        return True, operation(metadata)
    bare = name[:200].partition("(")[0]
    if not _LIBRARY.search(bare):
        return False, None
    operation_name = _KERNEL_OPS.search(bare)
    return True, operation(operation_name.group()) if operation_name else None


def item_bytes(dtype: object) -> int | None:
    """Bytes of one element of a type, by its name in torch, ATen or C++.

    >>> item_bytes("Float"), item_bytes("c10::BFloat16"), item_bytes("long int"), item_bytes("TensorList")
    (4, 2, 8, None)
    """
    return _ITEM_BYTES.get(dtype.replace(" ", "").lower()) if isinstance(dtype, str) else None


def dtype_name(dtype: object) -> str | None:
    """The name of a type in torch.

    >>> dtype_name("Float"), dtype_name("c10::Half"), dtype_name(["float"])
    ('float32', 'float16', None)
    """
    if not isinstance(dtype, str) or item_bytes(dtype) is None:
        return None
    plain = dtype.replace(" ", "").lower()
    return _DTYPES.get(plain, plain.removeprefix("c10::"))


def elements(dims: object, dtype: object = None) -> int | None:
    """Elements in the first argument of an operation, from ``Input Dims``: one tensor, or a list of them.

    ``dtype`` is its ``Input type``: older torch writes no dimensions for a ``TensorList``.

    >>> elements([[[2, 3], [4]], []]), elements([[8]]), elements([[]]), elements([[]], "TensorList"), elements("many")
    (10, 8, 1, None, None)
    """
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return None
    if not dims[0] and dtype == "TensorList":
        return None
    tensors = dims[0] if dims[0] and isinstance(dims[0][0], list) else [dims[0]]
    if len(tensors) > 10_000 or not all(isinstance(tensor, list) and len(tensor) <= 64 for tensor in tensors):
        return None
    sizes = [size for tensor in tensors for size in tensor]
    if not all(type(size) is int and 0 <= size < MAX_ELEMENTS for size in sizes):
        return None
    return min(sum(math.prod(tensor) for tensor in tensors), MAX_ELEMENTS)
