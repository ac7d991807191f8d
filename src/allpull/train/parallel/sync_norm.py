"""Synchronised batch normalisation on any device: the result equals that of one rank with all samples.

On a GPU it is torch's ``SyncBatchNorm``, which refuses CPUs; there it is our own. With w the weight of a rank's
samples, all sums over the samples and pixels of all ranks, N = Σw, x̂ = (x − mean) ÷ √(var + ε) and y = γ·x̂ + β::

    mean = Σ w·x ÷ N         var = Σ w·(x − mean)² ÷ N
    dx   = γ ÷ √(var + ε) · (dy − w · (Σdy + x̂ · Σ(dy·x̂)) ÷ N)

which is the usual gradient (Ioffe & Szegedy 2015) with weights. Means and variances of ranks are combined as in Chan,
Golub & LeVeque (1983), which avoids cancellation. Forward and backward have one collective each per layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from allpull.errors import BadInput
from allpull.train.parallel.ranks import Ranks

PIXELS = (0, 2, 3)  # the dimensions that the statistics of a channel reduce


class SampleWeight:
    """The weight of this rank's samples in batch statistics: 1, or 0 for a borrowed sample."""

    def __init__(self) -> None:
        self.value = 1.0


def sync_norms(model: nn.Module, ranks: Ranks) -> SampleWeight:
    """Synchronise all batch normalisation in ``model`` over ranks, in place; parameters are kept.

    Call it before the model is distributed. Ranks may have different numbers of samples, but must run the same forward
    passes. On a GPU the returned weight has no effect: a borrowed sample counts there.

    Raises:
        BadInput: a batch-normalisation layer that is not torch's ``BatchNorm2d``.
    """
    weight = SampleWeight()
    if ranks.ranks == 1:
        return weight
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.BatchNorm2d and layer.track_running_stats:
                setattr(parent, name, _synchronised(layer, weight, ranks.device))
            elif isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, SyncNorm):
                raise BadInput(
                    f"train.sync_norm: layer {name} is a {type(layer).__name__}, which cannot be synchronised",
                    hint="turn train.sync_norm off, or use a network of `allpull train --list-models`",
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
        count, mean, var = global_statistics(x.detach(), self.samples.value)
        self._update_running(count, mean, var)
        statistics = (mean, var, self.samples.value / count, self.eps)
        normalised: Tensor = Normalise.apply(x, self.weight, self.bias, statistics)  # type: ignore[no-untyped-call]  # torch's
        return normalised

    def _update_running(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = var * (count / (count - 1).clamp(min=1))  # for a single value it is 0 either way
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def global_statistics(x: Tensor, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """The number of values per channel over all ranks, their mean and biased variance [channels]; a collective.

    The values of this rank, [n, channels, h, w], have ``weight`` each.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    var, mean = torch.var_mean(x.to(exact), PIXELS, correction=0)
    count = mean.new_full((1,), weight * x.numel() / x.shape[1])
    own = torch.cat([count, mean, var])
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    counts, means, variances = torch.split(torch.stack(gathered), [1, len(mean), len(mean)], dim=1)
    shares = counts / counts.sum()
    mean = (shares * means).sum(0)
    return counts.sum(), mean, (shares * (variances + (means - mean) ** 2)).sum(0)


class Normalise(torch.autograd.Function):
    """γ · (x − mean) ÷ √(var + ε) + β, where mean and variance depend on x of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, statistics: tuple[Any, ...]) -> Tensor:
        """``statistics``: mean, var, weight of each sample ÷ N, and ε."""
        mean, var, share, epsilon = statistics
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


def _synchronised(layer: nn.BatchNorm2d, weight: SampleWeight, device: torch.device) -> nn.Module:
    if device.type != "cuda":
        return SyncNorm(layer, weight)
    synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]  # torch's
    return synced
