"""Batch normalisation with the statistics of all ranks together, on any device: the same as one rank with all samples.

On a GPU torch's own ``SyncBatchNorm`` does it. It refuses a CPU, so there stands ours. With w the weight of a rank's
samples, all sums over the samples and pixels of all ranks, N = Σw, x̂ = (x − mean) ÷ √(var + ε) and y = γ·x̂ + β::

    mean = Σ w·x ÷ N         var = Σ w·(x − mean)² ÷ N
    dx   = γ ÷ √(var + ε) · (dy − w · (Σdy + x̂ · Σ(dy·x̂)) ÷ N)

which is the usual gradient (Ioffe & Szegedy 2015) but for the weights. Means and squares of ranks are put together as
in Chan, Golub & LeVeque (1983), so that nothing cancels. Forward and backward have one collective a layer each.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from allpull.errors import BadInput
from allpull.train.parallel.ranks import Ranks

PIXELS = (0, 2, 3)  # what statistics of a channel go over


class SampleWeight:
    """What the samples of this rank count in batch statistics: 1, or 0 where they are borrowed to have any at all."""

    def __init__(self) -> None:
        self.value = 1.0


def sync_norms(model: nn.Module, ranks: Ranks) -> SampleWeight:
    """Have all batch normalisation in ``model`` use the samples of all ranks, in place; parameters stay the same ones.

    To be called before the ranks share the model. Ranks may have different numbers of samples, but must run the same
    forward passes. On a GPU the weight that is returned has no effect: a borrowed sample counts there.

    Raises:
        BadInput: a layer of normalisation that is not torch's own ``BatchNorm2d``.
    """
    weight = SampleWeight()
    if ranks.ranks == 1:
        return weight
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.BatchNorm2d and layer.track_running_stats:
                setattr(parent, name, _together(layer, weight, ranks.device))
            elif isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, SyncNorm):
                raise BadInput(
                    f"train.sync_norm: layer {name} is a {type(layer).__name__}, which cannot use all ranks' samples",
                    hint="leave train.sync_norm off, or take a network of `allpull train --list-models`",
                )
    return weight


class SyncNorm(nn.modules.batchnorm._BatchNorm):
    """``BatchNorm2d`` over the samples of all ranks; parameters and buffers are those of ``layer``."""

    def __init__(self, layer: nn.BatchNorm2d, weight: SampleWeight) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine)
        self.samples = weight
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, getattr(layer, name))
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → the same; in training a collective, which also updates the running statistics."""
        if not self.training:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        count, mean, var = statistics_of_all(x.detach(), self.samples.value)
        self._remember(count, mean, var)
        about = (mean, var, self.samples.value / count, self.eps)
        normalised: Tensor = Normalise.apply(x, self.weight, self.bias, about)  # type: ignore[no-untyped-call]  # torch's
        return normalised

    def _remember(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = var * (count / (count - 1).clamp(min=1))  # of a single value it is 0 either way
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def statistics_of_all(x: Tensor, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """How many values a channel has in all ranks, their mean and biased variance [channels]; a collective.

    Those of this rank, [n, channels, h, w], count ``weight`` each.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    var, mean = torch.var_mean(x.to(exact), PIXELS, correction=0)
    count = mean.new_full((1,), weight * x.numel() / x.shape[1])
    own = torch.cat([count, mean, var])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    counts, means, variances = torch.split(torch.stack(everyone), [1, len(mean), len(mean)], dim=1)
    shares = counts / counts.sum()
    mean = (shares * means).sum(0)
    return counts.sum(), mean, (shares * (variances + (means - mean) ** 2)).sum(0)


class Normalise(torch.autograd.Function):
    """γ · (x − mean) ÷ √(var + ε) + β, where mean and variance depend on the x of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, about: tuple[Any, ...]) -> Tensor:
        """``about``: mean, var, weight of each of these samples ÷ N, and ε."""
        mean, var, share, epsilon = about
        ctx.save_for_backward(x, gamma, mean, var, share)
        ctx.epsilon = epsilon
        return nn.functional.batch_norm(x, mean, var, gamma, beta, False, 0.0, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, γ and β; a collective."""
        x, gamma, mean, var, share = ctx.saved_tensors
        scale = torch.rsqrt(var + ctx.epsilon)
        shape = (1, -1, 1, 1)
        normal = (x.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        exact = dy.to(mean.dtype)
        dbeta, dgamma = exact.sum(PIXELS), (exact * normal).sum(PIXELS)
        sums = torch.cat([dbeta, dgamma])
        dist.all_reduce(sums)
        of_mean, of_var = (sums * share).view(2, -1)
        factor = scale if gamma is None else scale * gamma.to(scale.dtype)
        dx = (exact - of_mean.view(shape) - normal * of_var.view(shape)) * factor.view(shape)
        learned = gamma is not None
        return (
            dx.to(x.dtype),
            dgamma.to(gamma.dtype) if learned and ctx.needs_input_grad[1] else None,
            dbeta.to(gamma.dtype) if learned and ctx.needs_input_grad[2] else None,
            None,
        )


def _together(layer: nn.BatchNorm2d, weight: SampleWeight, device: torch.device) -> nn.Module:
    if device.type != "cuda":
        return SyncNorm(layer, weight)
    synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]  # torch's
    return synced
