"""FSDP2: each rank keeps a share of the weights, gradients and optimizer state, and gathers a block when it runs.

Gradients are averaged over ranks as DistributedDataParallel does it; batch statistics and other buffers stay each
rank's own. Each forward pass is a collective, so that every rank must run as many of them.

Weights and gradients travel in single precision: autocast rounds weights after they were gathered. A
``MixedPrecisionPolicy`` would halve the bytes, and also give norms weights in half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from allpull.train.ranks import Ranks

LARGE = 1 << 20  # parameters of a layer that is gathered by itself, such as the linear ones of VGG


class Fsdp:
    """A network that the ranks share; ``reshard``: what was gathered for forward is gathered again for backward."""

    def __init__(self, model: nn.Module, *, reshard: bool) -> None:
        self._parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
        self._root = self._parts[0]
        self._reshard = reshard

    def micro(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients of parts, of the whole network, add up in each rank, and are exchanged in that of the last one."""
        self._root.set_requires_gradient_sync(last)
        return nullcontext()

    def after_backward(self) -> None:
        """They are exchanged already."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within it every rank has all weights, and a forward pass without gradients is no collective.

        All of them at once, so that ranks may run as many passes as they have batches: they must fit on a device.
        """
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in self._parts:
                part.reshard()
                part.set_reshard_after_forward(self._reshard and part is not self._root, recurse=False)

    def forget(self) -> None:
        """Steps that collect weights are never recorded (``graph.obstacle``), and nothing else breaks off."""


def share(model: nn.Module, ranks: Ranks, *, reshard: bool) -> Fsdp:
    """Share ``model`` out over all ranks, in place: its parameters are others afterwards."""
    # FSDP2 takes no other weights; images may still be channels-last, and what convolutions compute then is too
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
    mesh = init_device_mesh(ranks.device.type, (ranks.ranks,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # backward begins with what is left for the root
    return Fsdp(model, reshard=reshard)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts of ``model`` that are gathered one at a time: composite parts of its sequences, and large layers.

    Those are the residual blocks of a ResNet, the mixed ones of Inception, and the linear layers of VGG.
    """
    found: list[nn.Module] = []
    for name, part in model.named_children():
        own = sum(parameter.numel() for parameter in part.parameters(recurse=False))
        composite = any(True for _ in part.children()) and any(True for _ in part.parameters())
        if own >= LARGE or (composite and isinstance(model, nn.Sequential) and name):
            found.append(part)
        else:
            found += blocks(part)
    return found
