"""The virtual accelerator: a network with the parameters and the timing of a real one that computes nothing.

Each layer is an autograd function whose forward and backward are waits on one schedule, and whose gradients, all
zeros, become ready when its backward ends. Everything after that is real: accumulation, DDP's hooks and buckets, the
all-reduce of as many bytes as the plan says, its overlap with what is left of backward. There are no buffers, so DDP
sends none in forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from allpull.rehearse.ranks.faults import NOTHING, Extra
from allpull.rehearse.ranks.schedule import Plan, PlannedLayer
from allpull.rehearse.ranks.timeline import COARSE_S, Timeline

FIRST_BUCKET_MIB = 1.0  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_MIB = 25.0  # DDP's default bucket_cap_mb


class Accelerator(nn.Module):
    """A network of timed layers. ``extra`` is what faults add to the step that runs next."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        super().__init__()
        self.extra: Extra = NOTHING
        self._timeline = timeline
        forward_s, backward_s, count = plan.forward_s, plan.backward_s, len(plan.layers)
        self._queue: list[_Work] = []
        for number, layer in enumerate(plan.layers):
            parameters = [self._parameter(one.name, one.elements) for one in layer.parameters]
            work = _Work(self, timeline, layer, parameters)
            work.forward_share = layer.forward_s / forward_s if forward_s else 1 / count
            work.backward_share = layer.backward_s / backward_s if backward_s else 1 / count
            work.settles = number == 0
            self._queue.append(work)

    def forward(self, x: Tensor) -> Tensor:
        """[] → []: a loss that depends on every parameter."""
        for work in self._queue:
            x = _Layer.apply(x, work, *work.parameters)  # type: ignore[no-untyped-call]  # torch has no type for it
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


class _Work:
    """One layer's share of a step."""

    __slots__ = (
        "accelerator", "backward_share", "forward_share", "gradients", "parameters", "plan", "settles", "timeline",
    )  # fmt: skip

    forward_share: float
    backward_share: float
    settles: bool

    def __init__(
        self, accelerator: Accelerator, timeline: Timeline, plan: PlannedLayer, parameters: list[nn.Parameter]
    ) -> None:
        self.accelerator = accelerator
        self.timeline = timeline
        self.plan = plan
        self.parameters = parameters
        # one zero for each tensor: autograd adds it to the bucket, and no second copy of the gradients is kept
        self.gradients = [torch.zeros(1).expand(parameter.numel()) for parameter in parameters]

    def forward(self) -> None:
        extra = self.accelerator.extra
        seconds = self.plan.forward_s * extra.share + extra.forward_s * self.forward_share
        self.timeline.work(max(0.0, seconds), COARSE_S)  # a forward pass shows nothing before its end

    def backward(self) -> None:
        extra = self.accelerator.extra
        seconds = self.plan.backward_s * extra.share + extra.backward_s * self.backward_share
        self.timeline.work(max(0.0, seconds))
        if self.settles:  # the last gradient of the step: nothing may be left undone behind it
            self.timeline.settle()


class _Layer(torch.autograd.Function):
    """Waits where a layer computes."""

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
    """An optimizer that takes its time and changes nothing; a real one, so that what hooks optimizers sees it."""

    def __init__(self, model: nn.Module, timeline: Timeline, seconds: float) -> None:
        super().__init__(model.parameters(), {})
        self._timeline = timeline
        self._seconds = seconds

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002  no loss
        """Wait as long as the update would take."""
        self._timeline.spend(self._seconds)


def wrap(model: Accelerator, shrink: float) -> DistributedDataParallel:
    """The model in DDP, with DDP's own bucket sizes divided by ``shrink``.

    DDP makes its first bucket smaller than the others, but only where no size is asked for. torch 2.13 takes a list,
    which says the same (all but the first step, for which DDP by itself makes one bucket); before, all buckets have
    one size, and the first may then be larger than DDP would make it.
    """
    options: dict[str, Any] = {"bucket_cap_mb": BUCKET_MIB / shrink}
    if "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters:
        options = {"bucket_cap_mb_list": [FIRST_BUCKET_MIB / shrink, BUCKET_MIB / shrink]}
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
