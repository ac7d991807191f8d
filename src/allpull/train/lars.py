"""LARS, an SGD for large batches: You, Gitman & Ginsburg, "Large Batch Training of Convolutional Networks" (2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allpull.schema.trainspec import TrainSpec
from allpull.train.optimise import split_by_decay

TRUST = 0.001  # the paper's η for AlexNet and ResNet-50


class Lars(torch.optim.Optimizer):
    """Momentum SGD in which each tensor has a learning rate of its own (algorithm 1 of the paper).

    λ = trust · ‖w‖ / (‖g‖ + weight_decay · ‖w‖), v ← momentum · v + lr · λ · (g + weight_decay · w), w ← w − v.
    Where ‖w‖ or ‖g‖ is 0, which the paper leaves open, λ = 1. A group with ``adapt`` false has λ = 1 throughout.
    Tensors of a group are stepped together, and none of their values is read by the host.
    """

    def __init__(
        self, params: Any, *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = TRUST
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": True}
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch's has overloads
        """One step with the gradients that there are; ``closure`` computes them anew and returns the loss."""
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
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        rates = self._local_rates(weights, gradients, group)
        updates = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        if rates is not None:
            torch._foreach_mul_(updates, rates)
        momenta = [self._momentum(weight) for weight in weights]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, updates, alpha=group["lr"])
        torch._foreach_sub_(weights, momenta)

    def _local_rates(
        self, weights: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> list[Tensor] | None:
        if not group["adapt"]:
            return None
        weight = torch.stack(list(torch._foreach_norm(weights)))
        gradient = torch.stack(list(torch._foreach_norm(gradients)))
        rate = group["trust"] * weight / (gradient + group["weight_decay"] * weight)
        return list(torch.where((weight > 0) & (gradient > 0), rate, torch.ones_like(rate)).unbind())

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


def lars(model: nn.Module, spec: TrainSpec) -> Lars:
    """LARS over ``model``; norms and biases, known by the type of their module, are neither decayed nor adapted."""
    decayed, free = split_by_decay(model)
    groups = [
        {"params": decayed, "weight_decay": spec.weight_decay},
        {"params": free, "weight_decay": 0.0, "adapt": False},
    ]
    return Lars(groups, lr=spec.lr, momentum=spec.momentum)
