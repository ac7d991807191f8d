"""What a network and its optimizer hold, whole and on the CPU, however the ranks share it; and back again.

A parameter that ranks share is a DTensor of torch's: it is gathered to be saved, and each rank takes its part of the
whole one when it is loaded. So what one strategy and number of ranks saved, any other can load. The optimizer's state
has the form of ``Optimizer.state_dict``, in which parameters have numbers: they do not depend on the strategy, and
optimizers over copies of the weights have them too.

DTensors are known by what they have: to import their module takes 0.4 s, and who has none does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def full_model_state(model: nn.Module, rank: int) -> dict[str, Tensor]:
    """Copies on the CPU of all parameters and of this rank's buffers, by name; a collective, complete on rank 0.

    The other ranks get an empty one, and hold no more than one whole tensor at a time.
    """
    with torch.no_grad(), Host() as host:
        copies = ((name, host.copy(value, rank)) for name, value in model.state_dict().items())
        return {name: value for name, value in copies if value is not None}


def load_full_model_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put ``state``, which every rank has whole, into ``model``.

    Raises:
        RuntimeError: it is of another network.
    """
    own = model.state_dict()
    model.load_state_dict({name: _shared_like(own.get(name), value) for name, value in state.items()})


def full_optimizer_state(optimizer: torch.optim.Optimizer, rank: int) -> dict[str, Any]:
    """What ``optimizer`` remembers, in the form of its ``state_dict``, with copies on the CPU; a collective.

    Complete on rank 0; the other ranks get an empty one.
    """
    own = optimizer.state_dict()
    with torch.no_grad(), Host() as host:
        memory = {
            number: {name: host.copy(value, rank) if isinstance(value, Tensor) else value for name, value in of.items()}
            for number, of in own["state"].items()
        }
    return {"state": memory, "param_groups": own["param_groups"]} if rank == 0 else {}


def load_full_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put ``state``, which every rank has whole, into ``optimizer``.

    Raises:
        ValueError: it is of other parameters.
        KeyError: it is none.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(parameters) != len(numbers):
        raise ValueError(f"the optimizer has {len(parameters)} parameters, the state to load {len(numbers)}")
    of = dict(zip(numbers, parameters, strict=True))
    memory = {}
    for number, about in state["state"].items():
        memory[number] = {
            name: _laid_out_like(of.get(number), value) if isinstance(value, Tensor) else value
            for name, value in about.items()
        }
        for name, value in memory[number].items():
            if isinstance(value, Tensor) and value.dim() and value.shape != of[number].shape:
                raise ValueError(f"{name} of parameter {number} is {[*value.shape]}, not {[*of[number].shape]}")
    optimizer.load_state_dict({**state, "state": memory})


def whole(value: Tensor) -> Tensor:
    """All of ``value``, of which a DTensor is a part; a collective then."""
    gathered: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered


class Host:
    """Copies to the CPU, complete at the end of the ``with`` in which they are made.

    From a GPU they go into page-locked memory, one after the other without the host waiting in between: once for all of
    them instead of once for each of a network's hundreds of tensors. ``cuda`` and ``locked`` stand for what torch has.
    """

    def __init__(self, cuda: Any = torch.cuda, locked: Callable[[Tensor], Tensor] | None = None) -> None:
        self._cuda, self._locked = cuda, locked or _page_locked
        self._under_way: set[torch.device] = set()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        for device in self._under_way:
            self._cuda.current_stream(device).synchronize()

    def copy(self, value: Tensor, rank: int) -> Tensor | None:
        """A copy of all of ``value`` on the CPU, on rank 0 alone; a collective where ranks share it."""
        value = whole(value.detach())
        if rank != 0:
            return None
        if value.device.type != "cuda":
            return value.to("cpu", copy=True)
        self._under_way.add(value.device)
        # what `whole` gathered is freed on this stream as well, and so not written again before it was read
        return self._locked(value).copy_(value, non_blocking=True)


def _page_locked(value: Tensor) -> Tensor:
    """Room for a copy of ``value``, in the same layout."""
    return torch.empty_like(value, device="cpu", pin_memory=True)


def _laid_out_like(weight: Any, value: Tensor) -> Tensor:
    """This rank's part of ``value`` in the layout of ``weight``, if it is of that shape; else all of it as it is.

    Strategies lay weights out differently, channels last or not. Fused SGD goes through the memory of a weight and its
    momentum side by side: on a GPU it refuses those of other strides, and on a CPU (torch 2.13) it mixes them up.
    """
    if weight is None or weight.shape != value.shape:
        return value
    part = _shared_like(weight, value.contiguous())  # as FSDP2 lays out all that it shares
    if hasattr(part, "device_mesh"):
        return part
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(part)


def _shared_like(own: Any, value: Tensor) -> Tensor:
    """This rank's part of ``value``, if ``own`` is one of a tensor of that shape; else all of it."""
    if own is None or not hasattr(own, "device_mesh") or own.shape != value.shape:
        return value
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  see above

    # every rank has the whole tensor, so that nothing needs to be sent
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
