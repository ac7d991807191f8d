"""Gradients exchanged after backward, all of them, bucket by bucket: nothing is sent while there is work to hide it.

So the trainings on HAL did it: what an exchange costs is then seen in full, and so is what overlap would save. To those
who watch, each bucket is a collective of its own between backward and the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

MIB = 1 << 20
FIRST_MB, REST_MB = 1.0, 25.0  # as DistributedDataParallel has them by default
SENT_AS = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What gradients are sent as, by the name of a compression; None: as they are."""


class LaterReduce:
    """Averages the gradients of ``model`` over ``ranks``, in buckets of ``sizes_mb``, of which the last repeats.

    Buckets are filled in the order in which gradients become ready, last layer first. A parameter without a gradient
    counts as one whose gradient is 0, so that ranks always send the same.
    """

    def __init__(
        self, model: nn.Module, *, ranks: int, sizes_mb: Sequence[float] = (), compression: str = "none"
    ) -> None:
        self._ranks = ranks
        self._sent_as = SENT_AS[compression]
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = fill(reversed(learned), [*sizes_mb] or [FIRST_MB, REST_MB])

    def micro(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  others need to know
        """Nothing is sent in any part."""
        return nullcontext()

    def after_backward(self) -> None:
        """Give each parameter the mean of its gradients over the ranks; a collective. One bucket after the other."""
        for bucket in self.buckets:
            flat = torch.cat([gradient_of(parameter).flatten() for parameter in bucket])
            flat = flat.to(self._sent_as or flat.dtype).div_(self._ranks)  # before the sum, which could overflow
            dist.all_reduce(flat)
            for parameter, mean in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
                gradient_of(parameter).copy_(mean.view_as(parameter))

    def whole(self) -> AbstractContextManager[None]:
        """Every rank has all weights anyway."""
        return nullcontext()

    def forget(self) -> None:
        """An exchange begins with the gradients that there are after backward."""


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The gradient of ``parameter``, which from now on has one."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def fill(parameters: Iterable[nn.Parameter], sizes_mb: Sequence[float]) -> list[list[nn.Parameter]]:
    """Buckets of parameters in their order, each of one type and at most its size in MiB, or with one parameter."""
    by_type: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_type.setdefault(parameter.dtype, []).append(parameter)
    buckets: list[list[nn.Parameter]] = []
    for alike in by_type.values():
        room = 0.0
        for parameter in alike:
            size = parameter.numel() * parameter.element_size()
            if size > room:
                room = sizes_mb[min(len(buckets), len(sizes_mb) - 1)] * MIB
                buckets.append([])
            buckets[-1].append(parameter)
            room -= size
    return buckets
