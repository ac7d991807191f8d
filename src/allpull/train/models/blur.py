"""Blur before taking every second pixel: Zhang, "Making Convolutional Networks Shift-Invariant Again" (2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

KERNEL = (0.25, 0.5, 0.25)  # binomial: 0 at the highest frequency, which sub-sampling by 2 would fold


class Blur(nn.Module):
    """A fixed 3×3 binomial filter on each channel, with ``stride``; the border is repeated outwards.

    It has no parameters and leaves nothing in a checkpoint, so a model with it has the names of one without.
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
    """3×3 max pooling, then blur with stride 2, in place of max pooling with stride 2."""
    return nn.Sequential(nn.MaxPool2d(3, 1, 1), Blur(2))
