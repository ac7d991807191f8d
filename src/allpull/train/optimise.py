"""SGD with decay where decay belongs, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from allpull.schema.trainspec import TrainSpec

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
REFERENCE_BATCH = 256  # the batch that a learning rate is given for (Goyal et al. 2017)


def sgd(model: nn.Module, spec: TrainSpec) -> torch.optim.SGD:
    """SGD with momentum; norms and biases, known by the type of their module, are not decayed.

    By name (``"bn" in name``) 8 of the 106 batch-norm parameters of a ResNet-50 would be decayed: those of the
    down-sampling shortcuts.
    """
    decayed, free = split_by_decay(model)
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, foreach=True)


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters to decay, and those not to: every bias and everything in a norm layer."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            spared = isinstance(module, NORM_LAYERS) or name.split("_")[0] == "bias"
            (free if spared else decayed).append(parameter)
    return decayed, free


def learning_rate(spec: TrainSpec, *, global_batch: int, step: int, steps_per_epoch: int) -> float:
    """The learning rate of global step ``step`` (from 0).

    The peak is ``spec.lr`` · global batch / 256, reached linearly over the warm-up (Goyal et al. 2017); then half
    a cosine to 0 at the end (Loshchilov & Hutter 2016), or a tenth after each ``spec.step_epochs``.

    >>> spec = TrainSpec(epochs=10, lr=0.1, warmup_epochs=1.0)
    >>> learning_rate(spec, global_batch=512, step=9, steps_per_epoch=10)
    0.2
    >>> learning_rate(spec, global_batch=512, step=55, steps_per_epoch=10)
    0.1
    """
    peak = spec.lr * global_batch / REFERENCE_BATCH
    warmup = spec.warmup_epochs * steps_per_epoch
    if step + 1 <= warmup:
        return peak * (step + 1) / warmup
    if spec.schedule == "step":
        return float(peak * 0.1 ** math.floor(step / (spec.step_epochs * steps_per_epoch)))
    total = spec.epochs * steps_per_epoch
    done = (step - warmup) / max(1.0, total - warmup)
    return round(peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done))), 12)
