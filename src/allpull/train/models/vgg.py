"""VGG: Simonyan & Zisserman, "Very Deep Convolutional Networks" (2014), configuration D, in torchvision's layout."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from allpull.errors import BadInput
from allpull.train.models.layers import norm_maker

WIDTH = 64  # default channels of the first stage
VGG16 = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # (times the width, convolutions) of each stage
HIDDEN = 64  # units of a hidden layer per channel of width: 4,096
GRID = 7  # side in pixels of the classifier's input
MIN_PIXELS = 32  # five halvings


class Vgg(nn.Module):
    """Five stages of 3×3 convolutions, each halved by max pooling, and three linear layers."""

    def __init__(self, *, channels: int, classes: int, width: int, norm: str | None) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for times, depth in VGG16:
            for _ in range(depth):
                layers.append(nn.Conv2d(channels, times * width, 3, 1, 1))
                layers += [norm_maker(norm)(times * width)] if norm else []
                layers.append(nn.ReLU(inplace=True))
                channels = times * width
            layers.append(nn.MaxPool2d(2))
        hidden = HIDDEN * width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(GRID)
        self.classifier = nn.Sequential(
            nn.Linear(channels * GRID * GRID, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, classes),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w], at least 32×32 → logits [n, classes]."""
        x = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def _vgg(
    with_norm: bool,
    channels: int,
    classes: int,
    width: int,
    norm: str,
    *,
    pixels: tuple[int, int] | None = None,
) -> nn.Module:
    if not with_norm and norm == "group":
        raise BadInput("vgg16 has no norms, so model.norm = group is not possible", hint="use vgg16_bn")
    if pixels is not None and min(pixels) < MIN_PIXELS:
        raise BadInput(f"VGG needs images of at least 32×32 pixels; these have {pixels[0]}×{pixels[1]}")
    return Vgg(channels=channels, classes=classes, width=width or WIDTH, norm=norm if with_norm else None)


vgg16 = partial(_vgg, False)
vgg16_bn = partial(_vgg, True)
