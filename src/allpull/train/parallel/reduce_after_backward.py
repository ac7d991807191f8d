"""All-reduce all gradients after backward, bucket by bucket, without overlap.

The trainings on HAL worked this way: the full cost of communication is visible, and so is what overlap would save. In
the records each bucket is a collective between backward and the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

MIB = 1 << 20
FIRST_MB, REST_MB = 1.0, 25.0  # the defaults of DistributedDataParallel
SENT_AS = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Compression → the type that gradients are sent in; None: their own."""


class ReduceAfterBackward:
    """Averages the gradients of ``model`` over ``ranks``, in buckets of ``sizes_mb``, of which the last repeats.

    Buckets are filled in the order in which gradients become ready, last layer first. A missing gradient counts as 0,
    so that all ranks send the same buckets.
    """

    def __init__(
        self, model: nn.Module, *, ranks: int, sizes_mb: Sequence[float] = (), compression: str = "none"
    ) -> None:
        self._ranks = ranks
        self._sent_as = SENT_AS[compression]
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = fill(reversed(learned), [*sizes_mb] or [FIRST_MB, REST_MB])

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  other strategies need it
        """Nothing is sent in any micro-batch."""
        return nullcontext()

    def after_backward(self) -> None:
        """Average the gradients over ranks, one bucket after the other; a collective."""
        for bucket in self.buckets:
            flat = torch.cat([gradient_of(parameter).flatten() for parameter in bucket])
            flat = flat.to(self._sent_as or flat.dtype).div_(self._ranks)  # before the sum, which could overflow
            dist.all_reduce(flat)
            for parameter, mean in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
                gradient_of(parameter).copy_(mean.view_as(parameter))

    def gathered(self) -> AbstractContextManager[None]:
        """Every rank has all weights."""
        return nullcontext()

    def discard(self) -> None:
        """Nothing is pending: each exchange starts from the gradients after backward."""


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The gradient of ``parameter``, created as 0 if missing."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def fill(parameters: Iterable[nn.Parameter], sizes_mb: Sequence[float]) -> list[list[nn.Parameter]]:
    """Buckets of parameters in order, each of one type, and of at most its size in MiB or a single parameter."""
    by_type: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_type.setdefault(parameter.dtype, []).append(parameter)
    buckets: list[list[nn.Parameter]] = []
    for same_type in by_type.values():
        room = 0.0
        for parameter in same_type:
            size = parameter.numel() * parameter.element_size()
            if size > room:
                room = sizes_mb[min(len(buckets), len(sizes_mb) - 1)] * MIB
                buckets.append([])
            buckets[-1].append(parameter)
            room -= size
    return buckets
