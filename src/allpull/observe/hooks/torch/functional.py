"""Observe functional collectives, which DTensor uses: tensor parallelism, and the norm of sharded gradients.

A function answers with a tensor that is waited for when it is first used. By then it may be another view of the same
memory: a call is known by the storage of what it answered. Of those that autograd adds to backward, which call no
function of Python, only waiting is observed.
"""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Tuple

from ...recording.step_line import COLLECTIVE
from ..inference.phases import NOT_SEEN
from ..inference.step_inference import StepInference
from .collectives import Call, Collectives, Signature, size_of

FUNCTIONAL = "torch.distributed._functional_collectives"

OPERATIONS = {
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_tensor": "all_gather_into_tensor",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all_single",
    "broadcast": "broadcast",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
}
"""Functional collectives, by the operations that they are recorded as; newer versions of torch rename some."""

GATHERING = "all_gather_into_tensor"


def watch_functional(module: ModuleType, collectives: Collectives, inference: StepInference) -> None:
    """Record the functional collectives of ``module``, and when they are waited for."""
    collectives.added_to(getattr(module, "traceable_collective_remaps", {}))
    for name, operation in OPERATIONS.items():
        function = getattr(module, name, None)
        if function is not None:
            setattr(module, name, _eager(module, function, _observed(module, function, operation, collectives)))
    wait = module.wait_tensor
    module.wait_tensor = _eager(module, wait, _observed_wait(wait, inference))  # type: ignore[attr-defined]


def _eager(module: ModuleType, function: Callable[..., Any], observed: Callable[..., Any]) -> Callable[..., Any]:
    """``observed`` where ``function`` is executed, and ``function`` itself where its call is only traced."""
    from torch.compiler import is_dynamo_compiling  # noqa: PLC0415  this runs after torch was imported

    are_we_tracing = getattr(module, "_are_we_tracing", is_dynamo_compiling)

    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or are_we_tracing():
            return function(*args, **kwargs)
        return observed(*args, **kwargs)

    return chosen


def _observed(
    module: ModuleType, function: Callable[..., Any], operation: str, collectives: Collectives
) -> Callable[..., Any]:
    argument = Signature(operation, function).argument

    def describe(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Call:
        name = module._resolve_group_name(argument("group", args, kwargs))
        group = module.c10d._resolve_process_group(name)
        size, dtype = size_of([argument("self", args, kwargs)])
        roots = (None, None, argument("src", args, kwargs), None)
        return operation, group, roots, size * group.size() if operation == GATHERING else size, dtype

    def pending(answer: Any) -> Optional[Any]:
        is_over = not isinstance(answer, module.AsyncCollectiveTensor) or answer.completed
        return None if is_over else _storage(answer.elem)

    observed = collectives.observed(operation, function, describe, pending)

    def called(*args: Any, **kwargs: Any) -> Any:
        if isinstance(argument("group", args, kwargs), list):  # to look for the group of ranks would warn once more
            return function(*args, **kwargs)
        return observed(*args, **kwargs)

    return called


def _observed_wait(wait: Callable[..., Any], inference: StepInference) -> Callable[..., Any]:
    works, calls = inference.works, inference.deferred

    def observed(tensor: Any) -> Any:
        depth = calls.enter(COLLECTIVE)
        begin = time.monotonic_ns()
        try:
            return wait(tensor)
        finally:
            end = time.monotonic_ns()
            calls.leave(depth)
            if depth != NOT_SEEN:
                works.waited(_storage(tensor), begin, end)

    return observed


def _storage(tensor: Any) -> Optional[Any]:
    """The storage of ``tensor``; None where it has none, as some subclasses."""
    try:
        return tensor.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
