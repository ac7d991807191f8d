"""FSDP2: each rank keeps a shard of the weights, gradients and optimizer state, and gathers a block when it runs.

Gradients are averaged over ranks as in DistributedDataParallel; each rank keeps its own batch statistics and other
buffers. Each forward pass is a collective, so every rank must run equally many.

**Mixed precision.** Autocast rounds the weights of convolutions and linear layers at each use. With
``train.precision`` bf16 or fp16 they are rounded before the all-gather instead. That halves the bytes and changes no
bit of the result: forward and backward see the same numbers, and gradients are reduced in single precision, as in
DistributedDataParallel. Parameters that autocast does not round are gathered in single precision: norms, and any other
kind. An FSDP2 group has one type, and a second group in each block would cost two or three more collectives of a few
KiB each. So all of those belong to the root, which is gathered once per step: 0.2 % of ResNet-50. For that the root is
sharded first, without the blocks' weights; later it would ignore parameters in modules that are sharded already.

**Memory.** Each rank builds the network on its host, and it moves to the device block by block as it is sharded: to be
trained, the whole need not fit there. To be evaluated it must, see ``Fsdp.gathered``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from allpull.train.models.layers import Pointwise
from allpull.train.parallel.ranks import Ranks

LARGE = 1 << 20  # parameters of a layer that forms its own group, such as the linear ones of VGG
FEW = 1 / 8  # largest share of a block's parameters that may move to the root, which stays gathered during a step
ROUNDED = {
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Pointwise), ("weight", "bias")),
    nn.modules.linear.NonDynamicallyQuantizableLinear: ("weight", "bias"),  # the last layer of the next one
    nn.MultiheadAttention: ("in_proj_weight", "in_proj_bias"),
}
"""Layer type whose parameters autocast rounds before any use → their names; subclasses may differ."""


class Fsdp:
    """A sharded network; ``reshard``: weights gathered for forward are gathered again for backward."""

    def __init__(self, model: nn.Module, *, reshard: bool) -> None:
        self._parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
        self._root = self._parts[0]
        self._reshard = reshard

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """Full gradients of micro-batches accumulate on each rank, and are exchanged with the last one."""
        self._root.set_requires_gradient_sync(last)
        return nullcontext()

    def after_backward(self) -> None:
        """Gradients are exchanged already."""

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """In this context every rank has all weights, and a forward pass without gradients is no collective.

        All weights are gathered at once, so that ranks may run different numbers of passes: they must fit on a device
        in the type in which they are gathered. That is autocast's type, and the forward pass must use it too.
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

    def discard(self) -> None:
        """Steps with sharded weights are never captured (``cuda_graph.obstacle``), and no other step is discarded."""


def shard(model: nn.Module, ranks: Ranks, *, reshard: bool, rounded_to: torch.dtype | None = None) -> Fsdp:
    """Shard ``model`` over all ranks in place: its parameters are replaced, on this rank's device.

    ``rounded_to``: gather weights in the type that autocast rounds them to; None: in their own type.
    """
    # FSDP2 needs contiguous weights; images may still be channels last, and so are the outputs of convolutions
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
    mesh = init_device_mesh(ranks.device.type, (ranks.ranks,))
    parts = blocks(model)
    if rounded_to is None or not can_exclude_parameters():
        for block in parts:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)  # backward starts with the root's weights
    else:
        _shard_rounded(model, parts, mesh, reshard=reshard, rounded_to=rounded_to)
    return Fsdp(model, reshard=reshard)


def can_exclude_parameters() -> bool:
    """Whether ``fully_shard`` of this torch can exclude parameters: 2.7 and newer."""
    return "ignored_params" in inspect.signature(fully_shard).parameters


def _shard_rounded(
    model: nn.Module, parts: list[nn.Module], mesh: DeviceMesh, *, reshard: bool, rounded_to: torch.dtype
) -> None:
    # autocast casts the inputs; gradients accumulate in the type of the reduction
    policy = MixedPrecisionPolicy(param_dtype=rounded_to, reduce_dtype=torch.float32, cast_forward_inputs=False)
    unrounded = MixedPrecisionPolicy()
    rounded = {block: rounded_parameters(block) for block in parts}
    inner = {one for block, some in rounded.items() for one in some or block.parameters()}
    fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=inner)
    for block, some in rounded.items():
        of_root = {*block.parameters()} - inner  # computed now, after the root has replaced its parameters
        how = policy if some else unrounded
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, ignored_params=of_root, mp_policy=how)


def rounded_parameters(block: nn.Module) -> set[nn.Parameter]:
    """The parameters in ``block`` that autocast rounds before any use; empty unless they are nearly all.

    A layer with parameters of other names is excluded: a parametrised one computes its weights first.
    """
    rounded: set[nn.Parameter] = set()
    for layer in block.modules():
        own = dict(layer.named_parameters(recurse=False))
        if own.keys() <= {*ROUNDED.get(type(layer), ())}:
            rounded |= {parameter for parameter in own.values() if parameter.dtype == torch.float32}
    numbers = sum(parameter.numel() for parameter in rounded)
    remaining = sum(parameter.numel() for parameter in block.parameters()) - numbers
    return rounded if remaining <= FEW * (numbers + remaining) else set()


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts of ``model`` that form FSDP groups: composite children of sequences, and large layers.

    These are the residual blocks of a ResNet, the mixed blocks of Inception, and the linear layers of VGG.
    """
    groups: list[nn.Module] = []
    for name, part in model.named_children():
        own = sum(parameter.numel() for parameter in part.parameters(recurse=False))
        composite = any(True for _ in part.children()) and any(True for _ in part.parameters())
        if own >= LARGE or (composite and isinstance(model, nn.Sequential) and name):
            groups.append(part)
        else:
            groups += blocks(part)
    return groups
