"""1×1 convolutions with a stride, kept away from a fault of oneDNN."""

from __future__ import annotations

from torch import Tensor, nn

SAFE_CHANNELS = 16  # from so many input channels on


class Pointwise(nn.Conv2d):
    """A 1×1 convolution with ``stride``: it sees every stride-th pixel of every stride-th row.

    With fewer than 16 input channels, channels last and in float32, the backward pass of oneDNN 3.12 (torch 2.13 on
    CPUs with AVX-512) writes beyond its memory (uxlfoundation/oneDNN issue 6035 reports the same for AVX2). There the
    pixels are taken first and convolved without a stride, which is the same arithmetic.
    """

    def __init__(self, channels_in: int, channels: int, stride: int, *, bias: bool) -> None:
        super().__init__(channels_in, channels, 1, stride, bias=bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch calls it so
        """[n, channels_in, h, w] → [n, channels, h / stride, w / stride], rounded up."""
        if self.in_channels >= SAFE_CHANNELS:
            return super().forward(input)
        down, across = self.stride
        return nn.functional.conv2d(input[:, :, ::down, ::across], self.weight, self.bias)
