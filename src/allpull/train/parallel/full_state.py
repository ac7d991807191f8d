"""The full state of a network and its optimizer on the CPU, independent of the parallel strategy; and loading it.

A sharded parameter is a torch DTensor: saving gathers it, and loading gives each rank its shard of the full tensor. So
any strategy and number of ranks can load what another saved. The optimizer's state has the form of
``Optimizer.state_dict``, in which parameters have numbers: these do not depend on the strategy, and optimizers over
copies of the weights have them too.

DTensors are recognised by their attributes: importing their module takes 0.4 s, which a run without them saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def full_model_state(model: nn.Module, rank: int) -> dict[str, Tensor]:
    """Copies on the CPU of all parameters and of this rank's buffers, by name; a collective, complete on rank 0.

    The other ranks get an empty dictionary, and hold at most one full tensor at a time.
    """
    with torch.no_grad(), HostCopies() as host:
        copies = ((name, host.copy(value, rank)) for name, value in model.state_dict().items())
        return {name: value for name, value in copies if value is not None}


def load_full_model_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load ``state``, which every rank has in full, into ``model``.

    Raises:
        RuntimeError: it is of another network.
    """
    own = model.state_dict()
    model.load_state_dict({name: _sharded_like(own.get(name), value) for name, value in state.items()})


def full_optimizer_state(optimizer: torch.optim.Optimizer, rank: int) -> dict[str, Any]:
    """The state of ``optimizer`` in the form of its ``state_dict``, with copies on the CPU; a collective.

    Complete on rank 0; the other ranks get an empty dictionary.
    """
    own = optimizer.state_dict()
    with torch.no_grad(), HostCopies() as host:
        memory = {
            number: {name: host.copy(value, rank) if isinstance(value, Tensor) else value for name, value in of.items()}
            for number, of in own["state"].items()
        }
    return {"state": memory, "param_groups": own["param_groups"]} if rank == 0 else {}


def load_full_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load ``state``, which every rank has in full, into ``optimizer``.

    Raises:
        ValueError: it is of other parameters.
        KeyError: it is not an optimizer state.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(parameters) != len(numbers):
        raise ValueError(f"the optimizer has {len(parameters)} parameters, and the state {len(numbers)}")
    of = dict(zip(numbers, parameters, strict=True))
    memory = {}
    for number, values in state["state"].items():
        memory[number] = {
            name: _laid_out_like(of.get(number), value) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for name, value in memory[number].items():
            if isinstance(value, Tensor) and value.dim() and value.shape != of[number].shape:
                raise ValueError(f"{name} of parameter {number} is {[*value.shape]}, not {[*of[number].shape]}")
    optimizer.load_state_dict({**state, "state": memory})


def full_tensor(value: Tensor) -> Tensor:
    """The full tensor of ``value``; a collective if it is a DTensor."""
    gathered: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered


class HostCopies:
    """Copies to the CPU, complete at the end of the ``with`` block in which they are made.

    Copies from a GPU go into pinned memory without blocking: the host waits once for all of them instead of once for
    each of a network's hundreds of tensors. ``cuda`` and ``pinned`` replace torch's functions in tests.
    """

    def __init__(self, cuda: Any = torch.cuda, pinned: Callable[[Tensor], Tensor] | None = None) -> None:
        self._cuda, self._pinned = cuda, pinned or _pinned_like
        self._pending: set[torch.device] = set()

    def __enter__(self) -> HostCopies:
        return self

    def __exit__(self, *_: object) -> None:
        for device in self._pending:
            self._cuda.current_stream(device).synchronize()

    def copy(self, value: Tensor, rank: int) -> Tensor | None:
        """A copy of the full ``value`` on the CPU, on rank 0 only; a collective if it is sharded."""
        value = full_tensor(value.detach())
        if rank != 0:
            return None
        if value.device.type != "cuda":
            return value.to("cpu", copy=True)
        self._pending.add(value.device)
        # the gathered tensor is freed on this stream too, so it is not overwritten before it is read
        return self._pinned(value).copy_(value, non_blocking=True)


def _pinned_like(value: Tensor) -> Tensor:
    """Pinned memory for a copy of ``value``, in the same layout."""
    return torch.empty_like(value, device="cpu", pin_memory=True)


def _laid_out_like(weight: Any, value: Tensor) -> Tensor:
    """This rank's shard of ``value`` in the layout of ``weight`` if the shapes match; otherwise ``value`` unchanged.

    Strategies lay weights out differently, channels last or not. Fused SGD walks the memory of a weight and its
    momentum in parallel: on a GPU it refuses differing strides, and on a CPU (torch 2.13) it mixes up the elements.
    """
    if weight is None or weight.shape != value.shape:
        return value
    shard = _sharded_like(weight, value.contiguous())  # as FSDP2 lays out its shards
    if hasattr(shard, "device_mesh"):
        return shard
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(shard)


def _sharded_like(own: Any, value: Tensor) -> Tensor:
    """This rank's shard of ``value`` if ``own`` is sharded and of that shape; otherwise all of it."""
    if own is None or not hasattr(own, "device_mesh") or own.shape != value.shape:
        return value
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  see above

    # every rank has the full tensor, so nothing is sent
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
