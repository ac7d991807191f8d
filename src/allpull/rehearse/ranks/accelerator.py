"""The virtual accelerator: a network with the parameters and timing of a real one that computes nothing.

Each layer is an autograd function whose forward and backward wait on one schedule, and whose gradients, all zeros,
become ready when its backward ends. Everything after that is real: accumulation, DDP's hooks and buckets, the
all-reduce of the planned number of bytes, and its overlap with the remaining backward. There are no buffers, so DDP
broadcasts none in forward.

A function costs about 40 µs of CPU, and ranks share cores here. So a layer that takes almost no time (normalisation)
has no function of its own: it shares that of the previous layer in backward, and its gradients are ready early.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from allpull.rehearse.ranks.faults import NOTHING, Extra
from allpull.rehearse.ranks.schedule import Plan, PlannedLayer
from allpull.rehearse.ranks.timeline import COARSE_S, Timeline

FIRST_BUCKET_MIB = 1.0  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_MIB = 25.0  # DDP's default bucket_cap_mb
TINY_S = 20e-6  # a layer whose backward is shorter shares a function
MAX_SHARED = 3  # autograd passes on up to this many gradients of one function in the given order; it may reorder more


class Accelerator(nn.Module):
    """A network of timed layers. ``extra`` is the time that faults add to the next step."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        super().__init__()
        self.extra: Extra = NOTHING
        self._timeline = timeline
        parameters = {
            one.name: self._parameter(one.name, one.elements) for layer in plan.layers for one in layer.parameters
        }
        self._queue = [_Work(self, timeline, plan, layers, parameters) for layers in group_layers(plan.layers)]
        self._queue[0].last = True

    def forward(self, x: Tensor) -> Tensor:
        """[] → []: a loss that depends on every parameter."""
        for work in self._queue:
            x = _Layers.apply(x, work, *work.parameters)  # type: ignore[no-untyped-call]  # torch has no type for it
        self._timeline.settle()
        return x

    def _parameter(self, name: str, elements: int) -> nn.Parameter:
        """A new parameter, in modules named as in the real network."""
        *places, last = name.split(".")
        module: nn.Module = self
        for place in places:
            if not hasattr(module, place):
                module.add_module(place, nn.Module())
            module = module.get_submodule(place)
        parameter = nn.Parameter(torch.zeros(elements))
        module.register_parameter(last, parameter)
        return parameter


def group_layers(layers: Sequence[PlannedLayer]) -> list[tuple[PlannedLayer, ...]]:
    """The layers of each autograd function, both in the order of the forward pass."""
    groups: list[tuple[PlannedLayer, ...]] = []
    for layer in reversed(layers):
        parameters_so_far = sum(len(other.parameters) for other in groups[-1]) if groups else MAX_SHARED
        if layer.backward_s < TINY_S and parameters_so_far + len(layer.parameters) <= MAX_SHARED:
            groups[-1] = (layer, *groups[-1])
        else:
            groups.append((layer,))
    return groups[::-1]


class _Work:
    """One function's share of a step."""

    def __init__(
        self,
        accelerator: Accelerator,
        timeline: Timeline,
        plan: Plan,
        layers: Sequence[PlannedLayer],
        parameters: dict[str, nn.Parameter],
    ) -> None:
        self.accelerator = accelerator
        self.timeline = timeline
        self.last = False  # in backward
        self.forward_s = sum(layer.forward_s for layer in layers)
        self.backward_s = sum(layer.backward_s for layer in layers)
        equal_share = len(layers) / len(plan.layers)
        self.forward_share = self.forward_s / plan.forward_s if plan.forward_s else equal_share
        self.backward_share = self.backward_s / plan.backward_s if plan.backward_s else equal_share
        self.parameters = [parameters[one.name] for layer in reversed(layers) for one in layer.parameters]
        # one shared zero per tensor: autograd adds it to the bucket, and no second copy of the gradients is kept
        self.gradients = [torch.zeros(1).expand(parameter.numel()) for parameter in self.parameters]

    def forward(self) -> None:
        """Take the time of the forward pass; moments within it cannot be observed before its end."""
        extra = self.accelerator.extra
        self.timeline.work(max(0.0, self.forward_s * extra.share + extra.forward_s * self.forward_share), COARSE_S)

    def backward(self) -> None:
        """Take the time of the backward pass; all of it has elapsed when the last gradient is ready."""
        extra = self.accelerator.extra
        self.timeline.work(max(0.0, self.backward_s * extra.share + extra.backward_s * self.backward_share))
        if self.last:
            self.timeline.settle()


class _Layers(torch.autograd.Function):
    """Waits for as long as the layers would compute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, work: _Work, *_: nn.Parameter) -> Tensor:
        ctx.work = work
        work.forward()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.work.backward()
        return (gradient, None, *ctx.work.gradients)


class Optimizer(torch.optim.Optimizer):
    """An optimizer that takes time and changes nothing; a real ``Optimizer``, so that optimizer hooks observe it."""

    def __init__(self, model: nn.Module, timeline: Timeline, seconds: float) -> None:
        super().__init__(model.parameters(), {})
        self._timeline = timeline
        self._seconds = seconds

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002  no loss
        """Wait for as long as the update would take."""
        self._timeline.spend(self._seconds)


def wrap(model: Accelerator, shrink: float, bucket_mib: float | None = None) -> DistributedDataParallel:
    """The model in DDP, with buckets of ``bucket_mib`` (None: DDP's own sizes) divided by ``shrink``.

    DDP makes its first bucket smaller than the others, but only if no size is requested. torch 2.13 accepts a list,
    which has the same effect (except in the first step, for which DDP by default makes one bucket); in earlier versions
    all buckets have one size, and the first may be larger than DDP would make it.
    """
    options: dict[str, Any] = {"bucket_cap_mb": (bucket_mib or BUCKET_MIB) / shrink}
    if bucket_mib is None and "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters:
        options = {"bucket_cap_mb_list": [FIRST_BUCKET_MIB / shrink, BUCKET_MIB / shrink]}
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
