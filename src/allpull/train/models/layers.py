"""Building blocks of networks: normalisation by name, blur pooling, and strided 1×1 convolutions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from allpull.errors import BadInput

Norm = Callable[[int], nn.Module]
GROUPS = 8  # of group normalisation, or the next smaller divisor of the channels
EPSILON = 1e-5  # torch's own


def norm_maker(name: str, *, scale: bool = True, epsilon: float = EPSILON) -> Norm:
    """A function from channels to a normalisation layer ``name``: batch, group or none.

    Without ``scale`` the factor of each channel stays 1 and is not trained, as in Keras with ``scale=False``; the
    tensor of ones is kept, so that names and weights match either way.

    Raises:
        BadInput: no such normalisation.
    """
    makers: dict[str, Norm] = {
        "batch": partial(nn.BatchNorm2d, eps=epsilon),
        "group": lambda channels: nn.GroupNorm(_groups(channels), channels, eps=epsilon),
        "none": lambda _: nn.Identity(),
    }
    if name not in makers:
        raise BadInput(f"no normalisation '{name}'; known: {', '.join(makers)}")
    return makers[name] if scale else lambda channels: _without_scale(makers[name](channels))


def _groups(channels: int) -> int:
    return next(groups for groups in range(GROUPS, 0, -1) if channels % groups == 0)


def _without_scale(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
        layer.weight.requires_grad_(False)
    return layer


KERNEL = (0.25, 0.5, 0.25)  # binomial: 0 at the highest frequency, which subsampling by 2 would alias


class Blur(nn.Module):
    """A fixed 3×3 binomial filter per channel with ``stride`` and replicated borders.

    Zhang, "Making Convolutional Networks Shift-Invariant Again" (2019). It has no parameters and no
    checkpoint entries, so a model has the same names with and without it.
    """

    kernel: Tensor

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        line = torch.tensor(KERNEL)
        self.register_buffer("kernel", torch.outer(line, line)[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → [n, channels, ceil(h / stride), ceil(w / stride)]."""
        channels = x.shape[1]
        padded = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
        return nn.functional.conv2d(padded, self.kernel.expand(channels, 1, 3, 3), stride=self.stride, groups=channels)


def blurred_max_pool() -> nn.Sequential:
    """3×3 max pooling, then blur with stride 2, instead of max pooling with stride 2."""
    return nn.Sequential(nn.MaxPool2d(3, 1, 1), Blur(2))


SAFE_CHANNELS = 16  # input channels from which oneDNN is safe


class Pointwise(nn.Conv2d):
    """A 1×1 convolution with ``stride``: it reads every stride-th pixel of every stride-th row.

    With fewer than 16 input channels, channels last and in float32, the backward pass of oneDNN 3.12 (torch 2.13 on
    CPUs with AVX-512) writes out of bounds (uxlfoundation/oneDNN issue 6035 reports the same for AVX2). In that
    case the pixels are selected first and convolved without a stride, which is the same arithmetic.
    """

    def __init__(self, channels_in: int, channels: int, stride: int, *, bias: bool) -> None:
        super().__init__(channels_in, channels, 1, stride, bias=bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch calls it so
        """[n, channels_in, h, w] → [n, channels, h / stride, w / stride], rounded up."""
        if self.in_channels >= SAFE_CHANNELS:
            return super().forward(input)
        down, across = self.stride
        return nn.functional.conv2d(input[:, :, ::down, ::across], self.weight, self.bias)
