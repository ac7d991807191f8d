"""FSDP2: each rank keeps a share of the weights, gradients and optimizer state, and gathers a block when it runs.

Gradients are averaged over ranks as DistributedDataParallel does it; batch statistics and other buffers stay each
rank's own. Each forward pass is a collective, so that every rank must run as many of them.

**Mixed precision.** Autocast rounds the weights of convolutions and linear layers each time they are used. With
``train.precision`` bf16 or fp16 they are rounded before they are gathered instead. That halves the bytes and changes no
bit of a result: forward and backward see the same numbers, and gradients are added up in single precision, as
DistributedDataParallel does. What autocast does not round is gathered as it is: norms, whose weights and statistics
stay in single precision, and whatever else a network has. A group of FSDP2 has one type, and one group more in each
block would be two or three collectives more, of a few KiB each. So all that is the root's, gathered once a step: 0.2 %
of ResNet-50. For that the root is shared out first, without the blocks' weights; afterwards it would look for none in
modules that are shared out themselves.

**Memory.** The network is built by each rank on its host, and moves to the device block by block as it is shared out:
whole it need not fit there to be trained. To be evaluated it must, see ``Fsdp.whole``.
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

LARGE = 1 << 20  # parameters of a layer that is gathered by itself, such as the linear ones of VGG
FEW = 1 / 8  # of a block's parameters may go to the root, which keeps them gathered throughout a step
ROUNDED = {
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Pointwise), ("weight", "bias")),
    nn.modules.linear.NonDynamicallyQuantizableLinear: ("weight", "bias"),  # the last layer of the next one
    nn.MultiheadAttention: ("in_proj_weight", "in_proj_bias"),
}
"""Layers whose parameters autocast rounds before any use → their names; layers derived from these may do otherwise."""


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

        All of them at once, so that ranks may run as many passes as they have batches: they must fit on a device, in
        the numbers in which they are gathered. Those are autocast's, and so must be the forward pass.
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


def share(model: nn.Module, ranks: Ranks, *, reshard: bool, rounded_to: torch.dtype | None = None) -> Fsdp:
    """Share ``model`` out over all ranks, in place: its parameters are others afterwards, on this rank's device.

    ``rounded_to``: what autocast rounds weights to, which are then gathered so; None: all are gathered as they are.
    """
    # FSDP2 takes no other weights; images may still be channels-last, and what convolutions compute then is too
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
    mesh = init_device_mesh(ranks.device.type, (ranks.ranks,))
    parts = blocks(model)
    if rounded_to is None or not can_leave_out():
        for block in parts:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)  # backward begins with what is left for the root
    else:
        _share_rounded(model, parts, mesh, reshard=reshard, rounded_to=rounded_to)
    return Fsdp(model, reshard=reshard)


def can_leave_out() -> bool:
    """Whether this version of torch has a ``fully_shard`` that leaves parameters out: 2.7 and newer."""
    return "ignored_params" in inspect.signature(fully_shard).parameters


def _share_rounded(
    model: nn.Module, parts: list[nn.Module], mesh: DeviceMesh, *, reshard: bool, rounded_to: torch.dtype
) -> None:
    # inputs are left to autocast; gradients of parts of a batch add up in what they are reduced in
    policy = MixedPrecisionPolicy(param_dtype=rounded_to, reduce_dtype=torch.float32, cast_forward_inputs=False)
    as_it_is = MixedPrecisionPolicy()
    rounded = {block: rounded_parameters(block) for block in parts}
    inner = {one for block, some in rounded.items() for one in some or block.parameters()}
    fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=inner)
    for block, some in rounded.items():
        of_root = {*block.parameters()} - inner  # to be asked now: the root has put others in their place
        how = policy if some else as_it_is
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, ignored_params=of_root, mp_policy=how)


def rounded_parameters(block: nn.Module) -> set[nn.Parameter]:
    """The parameters in ``block`` that autocast rounds before any use; none if they are not nearly all.

    Those of a layer are not among them if it has any of other names: a parametrised one computes its weights first.
    """
    rounded: set[nn.Parameter] = set()
    for layer in block.modules():
        own = dict(layer.named_parameters(recurse=False))
        if own.keys() <= {*ROUNDED.get(type(layer), ())}:
            rounded |= {parameter for parameter in own.values() if parameter.dtype == torch.float32}
    numbers = sum(parameter.numel() for parameter in rounded)
    others = sum(parameter.numel() for parameter in block.parameters()) - numbers
    return rounded if others <= FEW * (numbers + others) else set()


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
