"""Observe how a program writes checkpoints: ``torch.save`` and similar functions, in the training thread.

What gathers the state of all ranks for one of them is part of a checkpoint: each rank packs and sends its part in turn.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Callable

from ..inference.step_inference import StepInference

SAVERS = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.optim.zero_redundancy_optimizer": ("ZeroRedundancyOptimizer.consolidate_state_dict",),
    "torch.distributed.checkpoint.state_dict": ("get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"),
}
"""Functions and methods that write checkpoints, or gather the state for them, by module."""

SENDER = "torch.distributed.distributed_c10d"
"""It saves the objects that collectives send, since torch 2.14, in memory."""


def watch_saving(inference: StepInference) -> Callable[[ModuleType], None]:
    """The function to call with each module of ``SAVERS`` when it is imported."""

    def wrap(module: ModuleType) -> None:
        for path in SAVERS[module.__name__]:
            owner, _, name = path.rpartition(".")
            holder = getattr(module, owner, None) if owner else module
            function = getattr(holder, name, None)
            if function is not None:
                setattr(holder, name, _observed(inference, function))

    return wrap


def _observed(inference: StepInference, function: Callable[..., Any]) -> Callable[..., Any]:
    from torch import is_storage  # noqa: PLC0415  this runs after torch was imported

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if (args and is_storage(args[0])) or sys._getframe(1).f_globals.get("__name__") == SENDER:
            return function(*args, **kwargs)  # a tensor is pickled, or an object sent
        depth = inference.checkpoints.begin()
        try:
            return function(*args, **kwargs)
        finally:
            inference.checkpoints.end(depth)

    return observed
