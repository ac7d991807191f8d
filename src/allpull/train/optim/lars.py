"""LARS, an SGD for large batches: You, Gitman & Ginsburg, "Large Batch Training of Convolutional Networks" (2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

TRUST = 0.001  # the paper's η for AlexNet and ResNet-50


class Lars(torch.optim.Optimizer):
    """Momentum SGD in which each tensor has a learning rate of its own (algorithm 1 of the paper).

    λ = trust · ‖w‖ / (‖g‖ + weight_decay · ‖w‖), v ← momentum · v + lr · λ · (g + weight_decay · w), w ← w − v.
    Where ‖w‖ or ‖g‖ is 0, which the paper leaves open, λ = 1. A group with ``adapt`` false has λ = 1 throughout.
    The tensors of a group are updated together, without reading a value on the host. Of sharded weights each rank
    updates its shard, with the norms of the whole tensors.
    """

    def __init__(
        self, params: Any, *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = TRUST
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": True}
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch's has overloads
        """One step with the current gradients; ``closure`` recomputes them and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                self._step(group)
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        weights: list[Tensor] = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        momenta = [own_part(self._momentum(weight)) for weight in weights]
        mesh = getattr(weights[0], "device_mesh", None)
        gradients = [own_part(weight.grad) for weight in weights if weight.grad is not None]
        weights = [own_part(weight) for weight in weights]
        updates = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        if group["adapt"]:
            torch._foreach_mul_(updates, _local_rates(_norms(weights, gradients, mesh), group))
        torch._foreach_mul_(momenta, group["momentum"])
        if isinstance(group["lr"], Tensor):  # as in a CUDA graph; the host would read alpha
            torch._foreach_mul_(updates, group["lr"])
            torch._foreach_add_(momenta, updates)
        else:
            torch._foreach_add_(momenta, updates, alpha=group["lr"])
        torch._foreach_sub_(weights, momenta)

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


def own_part(value: Tensor) -> Tensor:
    """This rank's shard of ``value``, in the same memory; all of it unless it is sharded (FSDP)."""
    own = value.detach()
    part: Tensor = own.to_local() if hasattr(own, "to_local") else own  # importing DTensor takes half a second
    return part


def _norms(weights: list[Tensor], gradients: list[Tensor], mesh: Any) -> Tensor:
    """Norms of whole weights and gradients, [2, tensors]; a collective if they are sharded over ``mesh``."""
    norms = torch.stack([torch.stack(list(torch._foreach_norm(some))) for some in (weights, gradients)])
    if mesh is None:
        return norms
    squares = norms.square()
    dist.all_reduce(squares, group=mesh.get_group())
    return squares.sqrt()


def _local_rates(norms: Tensor, group: dict[str, Any]) -> list[Tensor]:
    weight, gradient = norms
    rate = group["trust"] * weight / (gradient + group["weight_decay"] * weight)
    return list(torch.where((weight > 0) & (gradient > 0), rate, torch.ones_like(rate)).unbind())
