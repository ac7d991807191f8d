"""The optimizer, with weight decay where it belongs, and the learning rate as a function of the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allpull.schema.trainspec import TrainSpec
from allpull.train.optim import schedule
from allpull.train.optim.lars import Lars

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
REFERENCE_BATCH = 256  # ``train.lr`` is for this batch (Goyal et al. 2017)


def optimizer_of(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """The optimizer of ``spec`` for ``model``, which is on its final device."""
    return lars(model, spec) if spec.optimizer == "lars" else sgd(model, spec)


def sgd(model: nn.Module, spec: TrainSpec) -> torch.optim.SGD:
    """SGD with momentum; norms and biases, recognised by the type of their module, decay only if ``spec`` says all.

    Selecting by name (``"bn" in name``) would decay 8 of the 106 batch-norm parameters of a ResNet-50: those of the
    down-sampling shortcuts.
    """
    on_gpu = all(parameter.is_cuda for parameter in model.parameters())
    shared = any(hasattr(parameter, "to_local") for parameter in model.parameters())
    # fused: one kernel per step on a GPU; torch lacks it for sharded parameters, which use foreach. On a CPU foreach
    # copies all gradients and takes longer than a loop over tensors
    fused = on_gpu and not shared
    return torch.optim.SGD(
        _groups(model, spec),
        lr=spec.lr,
        momentum=spec.momentum,
        nesterov=spec.nesterov,
        fused=fused,
        foreach=(on_gpu or shared) and not fused,
    )


def lars(model: nn.Module, spec: TrainSpec) -> Lars:
    """LARS; norms and biases, recognised by the type of their module, are not adapted, and decay only on request."""
    decayed, free = _groups(model, spec)
    return Lars([decayed, {**free, "adapt": False}], lr=spec.lr, momentum=spec.momentum)


def _groups(model: nn.Module, spec: TrainSpec) -> list[dict[str, Any]]:
    decayed, free = split_by_decay(model)
    of_free = spec.weight_decay if spec.decay == "all" else 0.0
    return [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": free, "weight_decay": of_free}]


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters to decay, and those not to: every bias and everything in a norm layer."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    listed: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in listed or not parameter.requires_grad:
                continue
            listed.add(id(parameter))
            exempt = isinstance(module, NORM_LAYERS) or name.split("_")[0] == "bias"
            (free if exempt else decayed).append(parameter)
    return decayed, free


def learning_rate(spec: TrainSpec, *, global_batch: int, step: int, steps_per_epoch: int) -> float:
    """The learning rate of global step ``step`` (from 0).

    The peak is ``spec.lr`` · global batch / 256, reached linearly over the warm-up (Goyal et al. 2017), and then
    ``spec.schedule`` to the end of the last epoch.

    >>> spec = TrainSpec(epochs=10, lr=0.1, warmup_epochs=1.0)
    >>> learning_rate(spec, global_batch=512, step=9, steps_per_epoch=10)
    0.2
    >>> learning_rate(spec, global_batch=512, step=55, steps_per_epoch=10)
    0.1
    """
    peak = spec.lr * global_batch / REFERENCE_BATCH
    warmup, steps = spec.warmup_epochs * steps_per_epoch, spec.epochs * steps_per_epoch
    if spec.schedule == "step":
        return schedule.stepped(peak, step, warmup_steps=warmup, every_steps=spec.step_epochs * steps_per_epoch)
    if spec.schedule == "milestones":
        at_steps = [epochs * steps_per_epoch for epochs in spec.milestones]
        return schedule.milestones(peak, step, warmup_steps=warmup, at_steps=at_steps)
    if spec.schedule == "polynomial":
        return schedule.polynomial(peak, step, warmup_steps=warmup, steps=steps, power=spec.power)
    if spec.schedule == "constant":
        return schedule.constant(peak, step, warmup_steps=warmup)
    return schedule.cosine(peak, step, warmup_steps=warmup, steps=steps)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give all groups of ``optimizer`` the learning rate ``rate``, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
