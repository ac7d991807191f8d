"""Observe copies of tensors from the host to its accelerator: ``Tensor.to`` and ``Tensor.cuda``.

The time counts for which the host is blocked. A non-blocking copy takes microseconds, a blocking one waits for all
earlier work of the device; the device's own times show how much of that the step lost.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Tuple

from ...recording.step_line import COPY
from ..inference.step_inference import StepInference

ACCELERATOR = "cuda"  # HIP uses this name too


def watch_copies(inference: StepInference) -> None:
    """Time each copy from now on; called once CUDA is in use, so that other programs do not pay for it."""
    import torch  # noqa: PLC0415  this runs after torch was imported

    for name, leaves_host in (("to", _is_to_accelerator), ("cuda", _always)):
        setattr(torch.Tensor, name, _observed(inference, getattr(torch.Tensor, name), leaves_host))


def _observed(
    inference: StepInference, copy: Callable[..., Any], leaves_host: Callable[[Tuple[Any, ...], Dict[str, Any]], bool]
) -> Callable[..., Any]:
    from torch.compiler import is_compiling  # noqa: PLC0415

    @functools.wraps(copy)
    def observed(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or inference.recorder is None or not leaves_host(args, kwargs) or not tensor.is_cpu:
            return copy(tensor, *args, **kwargs)
        depth = inference.enter(COPY)
        try:
            return copy(tensor, *args, **kwargs)
        finally:
            inference.leave(depth)

    return observed


def _always(*_: object) -> bool:
    return True


def _is_to_accelerator(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """Whether these arguments of ``Tensor.to`` name the accelerator: a device, its name, its number, or a tensor there.

    >>> _is_to_accelerator(("cuda:1",), {}), _is_to_accelerator(("cpu",), {}), _is_to_accelerator((0,), {})
    (True, False, True)
    """
    target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(target, str):
        return target.startswith(ACCELERATOR)
    if isinstance(target, int):
        return not isinstance(target, bool)
    kind = getattr(target, "type", None)  # of a device; of a tensor it is a method
    return kind == ACCELERATOR if isinstance(kind, str) else bool(getattr(target, "is_cuda", False))
