"""Observe batches that a program makes itself: tensors that it makes of numpy's arrays, memory maps included."""

from __future__ import annotations

import functools
from typing import Any, Callable

from ..inference.step_inference import StepInference

MAKERS = ("from_numpy", "as_tensor", "tensor")  # functions of torch


def watch_arrays(inference: StepInference) -> None:
    """Time what makes tensors of arrays; in compiled and scripted code these functions stay torch's own."""
    import torch  # noqa: PLC0415  this runs after torch was imported
    from torch.jit import _builtins  # noqa: PLC0415
    from torch.utils import _device  # noqa: PLC0415

    scripted: Any = _builtins
    on_default_device = _device._device_constructors()  # what ``torch.device`` as a context gives its device to
    for name in MAKERS:
        make = getattr(torch, name)
        observed = _observed(inference, make)
        operator = scripted._find_builtin(make)
        if operator is not None:
            scripted._register_builtin(observed, operator)
        if make in on_default_device:
            on_default_device.add(observed)
        setattr(torch, name, observed)


def _observed(inference: StepInference, make: Callable[..., Any]) -> Callable[..., Any]:
    from torch._C import _is_torch_function_mode_enabled as has_mode  # noqa: PLC0415
    from torch.compiler import is_compiling  # noqa: PLC0415
    from torch.overrides import handle_torch_function  # noqa: PLC0415

    calls = inference.deferred
    takes_modes = make.__name__ != "from_numpy"  # torch shows its modes the others alone

    @functools.wraps(make)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if takes_modes and not is_compiling() and has_mode():
            return handle_torch_function(observed, (), *args, **kwargs)  # the mode has to see what the program calls
        if is_compiling() or not args or type(args[0]).__module__ != "numpy" or not calls.tensor_begins():
            return make(*args, **kwargs)
        try:
            return make(*args, **kwargs)
        finally:
            calls.tensor_ends()

    return observed
