"""A residual network of nine layers that learns small images in few epochs: Page, "How to Train Your ResNet" (2018).

A stem, three stages of one convolution and max pooling, residual pairs of convolutions in the first and the last stage,
the largest value of each channel, and logits scaled by 1/8. Channels are 1, 2, 4 and 8 times the width. Pooling comes
before the norm, as in part eight of that series: it commutes with monotone functions and leaves a quarter of the work.
"""

from __future__ import annotations

from torch import Tensor, nn

from allpull.train.models.layers import Norm, norm_maker

WIDTH = 64  # default channels of the stem
SCALE = 0.125  # of the logits


class Layer(nn.Sequential):
    """A 3×3 convolution, 2×2 max pooling if ``pooled``, a norm and a rectifier."""

    def __init__(self, channels_in: int, channels: int, norm: Norm, *, pooled: bool = False) -> None:
        pool = [nn.MaxPool2d(2)] if pooled else []
        conv = nn.Conv2d(channels_in, channels, 3, 1, 1, bias=False)
        super().__init__(conv, *pool, norm(channels), nn.ReLU(inplace=True))
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")


class Residual(nn.Module):
    """Two layers added to their input, without a rectifier after the sum."""

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        self.first = Layer(channels, channels, norm)
        self.second = Layer(channels, channels, norm)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → the same shape."""
        added: Tensor = self.second(self.first(x))
        return x + added


class ResNet9(nn.Module):
    """Nine layers for images of at least 8×8 pixels."""

    def __init__(self, *, channels: int, classes: int, width: int, norm: str) -> None:
        super().__init__()
        make_norm = norm_maker(norm)
        self.stem = Layer(channels, width, make_norm)
        self.stages = nn.Sequential(
            Layer(width, 2 * width, make_norm, pooled=True),
            Residual(2 * width, make_norm),
            Layer(2 * width, 4 * width, make_norm, pooled=True),
            Layer(4 * width, 8 * width, make_norm, pooled=True),
            Residual(8 * width, make_norm),
        )
        self.head = nn.Linear(8 * width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → logits [n, classes]."""
        features: Tensor = self.stages(self.stem(x))
        logits: Tensor = self.head(features.amax((2, 3)))
        return logits * SCALE


def resnet9(channels: int, classes: int, width: int, norm: str) -> nn.Module:
    """The network; ``width`` 0 is 64, as published."""
    return ResNet9(channels=channels, classes=classes, width=width or WIDTH, norm=norm)
