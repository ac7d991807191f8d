"""Residual networks for ImageNet: He, Zhang, Ren & Sun, "Deep Residual Learning" (2015), table 1.

Layout and parameter names are torchvision's, so that its weights load. Bottlenecks have their stride in the 3×3
convolution ("v1.5", as Torch's and NVIDIA's) or in the first 1×1 one ("v1", as the paper's and Keras').
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from allpull.errors import BadInput
from allpull.train.models.layers import Blur, Norm, Pointwise, blurred_max_pool, norm_maker

WIDTH = 64  # default channels of the first stage
EXPANSION = 4  # of a bottleneck: channels out over channels within
SHRINK = 32  # pixels of the image over pixels of the last stage
MIN_BLUR_CHANNELS = 16  # below this the input is raw colour, which is not blurred (as in FFCV and Composer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The options of a network's layers: norm, biases of convolutions, blur, and the position of the stride."""

    norm: Norm
    conv_bias: bool
    blur_pool: bool
    stride: Literal["v1", "v1.5"]

    def conv(self, channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
        """A convolution that keeps the image size, apart from the stride."""
        if size == 1:
            return Pointwise(channels_in, channels, stride, bias=self.conv_bias)
        return nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=self.conv_bias)

    def blur(self, channels_in: int, stride: int) -> nn.Module:
        """The layer before a convolution with ``stride``: a blur, or the identity."""
        wanted = self.blur_pool and stride > 1 and channels_in >= MIN_BLUR_CHANNELS
        return Blur() if wanted else nn.Identity()

    def shortcut(self, channels_in: int, channels: int, stride: int) -> nn.Sequential | None:
        """A 1×1 convolution and a norm where the shape changes; None where it does not."""
        if stride == 1 and channels_in == channels:
            return None
        return nn.Sequential(self.conv(channels_in, channels, 1, stride), self.norm(channels))


class Basic(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.blur = layers.blur(channels_in, stride)
        self.conv1 = layers.conv(channels_in, width, 3, stride)
        self.bn1 = layers.norm(width)
        self.conv2 = layers.conv(width, width, 3)
        self.bn2 = layers.norm(width)
        self.downsample = layers.shortcut(channels_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, width, h / stride, w / stride]."""
        soft = self.blur(x)
        y = torch.relu(self.bn1(self.conv1(soft)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(soft)))

    def last_norm(self) -> nn.Module:
        """The norm before the sum."""
        return self.bn2


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions around a shortcut; ``width`` channels within, four times as many out."""

    expansion = EXPANSION

    def __init__(self, channels_in: int, width: int, stride: int, layers: Layers) -> None:
        super().__init__()
        first, second = (stride, 1) if layers.stride == "v1" else (1, stride)
        channels = width * EXPANSION
        self.blur = layers.blur(channels_in, stride)
        self.conv1 = layers.conv(channels_in, width, 1, first)
        self.bn1 = layers.norm(width)
        self.blur2 = layers.blur(width, second)
        self.conv2 = layers.conv(width, width, 3, second)
        self.bn2 = layers.norm(width)
        self.conv3 = layers.conv(width, channels, 1)
        self.bn3 = layers.norm(channels)
        self.downsample = layers.shortcut(channels_in, channels, stride)
        self.blur_first = first > 1

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, 4 · width, h / stride, w / stride]."""
        soft = self.blur(x)
        y = torch.relu(self.bn1(self.conv1(soft if self.blur_first else x)))
        y = torch.relu(self.bn2(self.conv2(self.blur2(y))))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(soft)))

    def last_norm(self) -> nn.Module:
        """The norm before the sum."""
        return self.bn3


Block = type[Basic] | type[Bottleneck]


class ResNet(nn.Module):
    """A 7×7 stem, max pooling, four stages of blocks, pooling and one linear layer.

    ``flat_pixels`` None: the classifier sees the mean over all pixels. Otherwise the last stage is pooled 2×2 to that
    many pixels, and the classifier sees all of them.
    """

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

    def __init__(
        self, block: Block, depths: tuple[int, ...], layers: Layers, *, channels: int, classes: int, width: int,
        flat_pixels: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv1 = layers.conv(channels, width, 7, 2)
        self.bn1 = layers.norm(width)
        self.maxpool = blurred_max_pool() if layers.blur_pool else nn.MaxPool2d(3, 2, 1)
        channels_in = width
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                blocks.append(block(channels_in, width << stage, 2 if stage > 0 and index == 0 else 1, layers))
                channels_in = (width << stage) * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1) if flat_pixels is None else nn.AvgPool2d(2)
        self.fc = nn.Linear(channels_in * (flat_pixels or 1), classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → logits [n, classes]."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _resnet(
    kind: tuple[Block, tuple[int, ...]],
    channels: int,
    classes: int,
    width: int,
    norm: str,
    *,
    stride: Literal["v1", "v1.5"] = "v1.5",
    conv_bias: bool = False,
    norm_scale: bool = True,
    head: Literal["pool", "flatten"] = "pool",
    zero_init: bool = False,
    blur_pool: bool = False,
    pixels: tuple[int, int] | None = None,
) -> nn.Module:
    layers = Layers(norm=norm_maker(norm, scale=norm_scale), conv_bias=conv_bias, blur_pool=blur_pool, stride=stride)
    model = ResNet(
        *kind, layers, channels=channels, classes=classes, width=width or WIDTH,
        flat_pixels=_flat_pixels(pixels) if head == "flatten" else None,
    )  # fmt: skip
    if zero_init:
        _start_as_identity(model)
    return model


def _flat_pixels(pixels: tuple[int, int] | None) -> int:
    """Pixels of the last stage after 2×2 pooling: 120×120 become 4×4 there, and 2×2 after pooling."""
    if pixels is None or min(pixels) <= SHRINK:
        shown = "an unknown size" if pixels is None else f"{pixels[0]}×{pixels[1]} pixels"
        raise BadInput(
            f"model.head = flatten needs images larger than {SHRINK} pixels each way; these have {shown}",
            hint="use model.head = pool, or larger images",
        )
    height, width = (-(-side // SHRINK) // 2 for side in pixels)
    return height * width


def _start_as_identity(model: ResNet) -> None:
    """Initialise the last norm of each block to 0 (Goyal et al. 2017, section 5.1)."""
    for module in model.modules():
        if isinstance(module, Basic | Bottleneck):
            weight = getattr(module.last_norm(), "weight", None)
            if weight is None or not weight.requires_grad:
                raise BadInput(
                    "model.zero_init needs norms with a trained scale: without one the block could never learn"
                )
            nn.init.zeros_(weight)


resnet18 = partial(_resnet, (Basic, (2, 2, 2, 2)))
resnet34 = partial(_resnet, (Basic, (3, 4, 6, 3)))
resnet50 = partial(_resnet, (Bottleneck, (3, 4, 6, 3)))
resnet101 = partial(_resnet, (Bottleneck, (3, 4, 23, 3)))
