"""See a program write checkpoints: ``torch.save`` and its relatives, called by the thread that trains."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from ...recording.step_line import CHECKPOINT
from ..inference.step_inference import Watcher

SAVERS = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that write checkpoints, by the module that holds them."""


def watch_saving(watcher: Watcher) -> Callable[[ModuleType], None]:
    """What to call with each module of ``SAVERS`` once it was imported."""

    def wrap(module: ModuleType) -> None:
        for name in SAVERS[module.__name__]:
            function = getattr(module, name, None)
            if function is not None:
                setattr(module, name, _observed(watcher, function))

    return wrap


def _observed(watcher: Watcher, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        watcher.is_beyond_evaluation()
        depth = watcher.enter(CHECKPOINT)
        try:
            return function(*args, **kwargs)
        finally:
            watcher.leave(depth)

    return observed
