"""Residual networks for small images: He, Zhang, Ren & Sun, "Deep Residual Learning" (2015), section 4.2.

6n + 2 layers: a 3×3 stem, three stages of n basic blocks at 1, 2 and 4 times the width, global average pooling.
Shortcuts that change shape are 1×1 convolutions (option B of the paper).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from allpull.train.models.layers import Norm, Pointwise, norm_maker

WIDTH = 16  # default channels of the first stage


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(Pointwise(channels_in, channels, stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, channels, h / stride, w / stride]."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network for images of at least 8×8 pixels."""

    def __init__(self, blocks: int, *, channels: int, classes: int, width: int, norm: str) -> None:
        super().__init__()
        make_norm = norm_maker(norm)
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), make_norm(width), nn.ReLU())
        stages: list[nn.Module] = []
        channels_in = width
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Block(channels_in, width << stage, stride, make_norm))
                channels_in = width << stage
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → logits [n, classes]."""
        features: Tensor = self.stages(self.stem(x))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def _resnet(blocks: int, channels: int, classes: int, width: int, norm: str) -> nn.Module:
    return ResNet(blocks, channels=channels, classes=classes, width=width or WIDTH, norm=norm)


resnet8 = partial(_resnet, 1)
resnet14 = partial(_resnet, 2)
resnet20 = partial(_resnet, 3)
