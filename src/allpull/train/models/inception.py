"""Inception-v3: Szegedy et al., "Rethinking the Inception Architecture" (2015), in torchvision's layout.

Without the auxiliary head, as in Keras and tf_cnn_benchmarks' counts; loading weights skips it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from allpull.errors import BadInput
from allpull.train.models.layers import Norm, norm_maker

MIN_PIXELS = 75  # below this a layer has no pixels
EPSILON = 1e-3  # of the norms, as published
INITIAL_STD = 0.1  # of all weights, truncated at two
AUXILIARY = "AuxLogits."


class ConvNorm(nn.Module):
    """A convolution without bias, its norm, and ReLU; ``shape`` is the size and, if not 1 and 0, stride and padding."""

    def __init__(self, norm: Norm, channels_in: int, channels: int, *shape: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, *shape, bias=False)  # type: ignore[misc]  # three at most
        self.bn = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, channels, …]."""
        return torch.relu(self.bn(self.conv(x)))


class Branches(nn.Module):
    """Parallel branches over one input, concatenated by channels.

    ``layers``: name → channels in, channels out and the other arguments of a convolution. ``routes``: one branch each,
    a chain of names; "average" and "max" are poolings, and a tuple in a chain is a fork that ends it.
    """

    def __init__(self, norm: Norm, layers: Mapping[str, tuple[Any, ...]], routes: tuple[tuple[Any, ...], ...]) -> None:
        super().__init__()
        self.routes = routes
        for name, shape in layers.items():
            self.add_module(name, ConvNorm(norm, *shape))

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, channels of all branches, …]."""
        return torch.cat([out for route in self.routes for out in self._follow(x, route)], 1)

    def _follow(self, x: Tensor, route: tuple[Any, ...]) -> list[Tensor]:
        for part in route:
            if isinstance(part, tuple):
                return [self.get_submodule(name)(x) for name in part]
            if part == "average":
                x = avg_pool2d(x, 3, 1, 1)
            elif part == "max":
                x = max_pool2d(x, 3, 2)
            else:
                x = self.get_submodule(part)(x)
        return [x]


def _a(norm: Norm, channels_in: int, pool: int) -> Branches:
    """35×35 pixels: 1×1, 5×5 and a double 3×3."""
    layers = {
        "branch1x1": (channels_in, 64, 1),
        "branch5x5_1": (channels_in, 48, 1),
        "branch5x5_2": (48, 64, 5, 1, 2),
        "branch3x3dbl_1": (channels_in, 64, 1),
        "branch3x3dbl_2": (64, 96, 3, 1, 1),
        "branch3x3dbl_3": (96, 96, 3, 1, 1),
        "branch_pool": (channels_in, pool, 1),
    }
    double = ("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3")
    return Branches(norm, layers, (("branch1x1",), ("branch5x5_1", "branch5x5_2"), double, ("average", "branch_pool")))


def _b(norm: Norm) -> Branches:
    """From 35×35 to 17×17 pixels."""
    layers = {
        "branch3x3": (288, 384, 3, 2),
        "branch3x3dbl_1": (288, 64, 1),
        "branch3x3dbl_2": (64, 96, 3, 1, 1),
        "branch3x3dbl_3": (96, 96, 3, 2),
    }
    return Branches(norm, layers, (("branch3x3",), ("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"), ("max",)))


def _c(norm: Norm, within: int) -> Branches:
    """17×17 pixels: 7×7 convolutions as 1×7 and 7×1."""
    wide, tall = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    layers = {
        "branch1x1": (768, 192, 1),
        "branch7x7_1": (768, within, 1),
        "branch7x7_2": (within, within, *wide),
        "branch7x7_3": (within, 192, *tall),
        "branch7x7dbl_1": (768, within, 1),
        "branch7x7dbl_2": (within, within, *tall),
        "branch7x7dbl_3": (within, within, *wide),
        "branch7x7dbl_4": (within, within, *tall),
        "branch7x7dbl_5": (within, 192, *wide),
        "branch_pool": (768, 192, 1),
    }
    single = tuple(f"branch7x7_{index}" for index in (1, 2, 3))
    double = tuple(f"branch7x7dbl_{index}" for index in (1, 2, 3, 4, 5))
    return Branches(norm, layers, (("branch1x1",), single, double, ("average", "branch_pool")))


def _d(norm: Norm) -> Branches:
    """From 17×17 to 8×8 pixels."""
    layers = {
        "branch3x3_1": (768, 192, 1),
        "branch3x3_2": (192, 320, 3, 2),
        "branch7x7x3_1": (768, 192, 1),
        "branch7x7x3_2": (192, 192, (1, 7), 1, (0, 3)),
        "branch7x7x3_3": (192, 192, (7, 1), 1, (3, 0)),
        "branch7x7x3_4": (192, 192, 3, 2),
    }
    seven = tuple(f"branch7x7x3_{index}" for index in (1, 2, 3, 4))
    return Branches(norm, layers, (("branch3x3_1", "branch3x3_2"), seven, ("max",)))


def _e(norm: Norm, channels_in: int) -> Branches:
    """8×8 pixels: branches that fork into 1×3 and 3×1."""
    wide, tall = ((1, 3), 1, (0, 1)), ((3, 1), 1, (1, 0))
    layers = {
        "branch1x1": (channels_in, 320, 1),
        "branch3x3_1": (channels_in, 384, 1),
        "branch3x3_2a": (384, 384, *wide),
        "branch3x3_2b": (384, 384, *tall),
        "branch3x3dbl_1": (channels_in, 448, 1),
        "branch3x3dbl_2": (448, 384, 3, 1, 1),
        "branch3x3dbl_3a": (384, 384, *wide),
        "branch3x3dbl_3b": (384, 384, *tall),
        "branch_pool": (channels_in, 192, 1),
    }
    single = ("branch3x3_1", ("branch3x3_2a", "branch3x3_2b"))
    double = ("branch3x3dbl_1", "branch3x3dbl_2", ("branch3x3dbl_3a", "branch3x3dbl_3b"))
    return Branches(norm, layers, (("branch1x1",), single, double, ("average", "branch_pool")))


class InceptionV3(nn.Sequential):
    """The network from stem to logits: [n, channels, h, w], at least 75×75, best 299×299 → [n, classes]."""

    not_loaded = (AUXILIARY,)  # prefixes of names that loading skips

    def __init__(self, norm: Norm, *, channels: int, classes: int) -> None:
        super().__init__()
        parts: dict[str, nn.Module] = {
            "Conv2d_1a_3x3": ConvNorm(norm, channels, 32, 3, 2),
            "Conv2d_2a_3x3": ConvNorm(norm, 32, 32, 3),
            "Conv2d_2b_3x3": ConvNorm(norm, 32, 64, 3, 1, 1),
            "maxpool1": nn.MaxPool2d(3, 2),
            "Conv2d_3b_1x1": ConvNorm(norm, 64, 80, 1),
            "Conv2d_4a_3x3": ConvNorm(norm, 80, 192, 3),
            "maxpool2": nn.MaxPool2d(3, 2),
            "Mixed_5b": _a(norm, 192, 32),
            "Mixed_5c": _a(norm, 256, 64),
            "Mixed_5d": _a(norm, 288, 64),
            "Mixed_6a": _b(norm),
            "Mixed_6b": _c(norm, 128),
            "Mixed_6c": _c(norm, 160),
            "Mixed_6d": _c(norm, 160),
            "Mixed_6e": _c(norm, 192),
            "Mixed_7a": _d(norm),
            "Mixed_7b": _e(norm, 1280),
            "Mixed_7c": _e(norm, 2048),
            "avgpool": nn.AdaptiveAvgPool2d(1),
            "dropout": nn.Dropout(),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(2048, classes),
        }
        for name, part in parts.items():
            self.add_module(name, part)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                bound = 2 * INITIAL_STD
                nn.init.trunc_normal_(module.weight, 0, INITIAL_STD, -bound, bound)
        hook: Any = self.register_load_state_dict_pre_hook  # has no types in torch
        hook(_without_auxiliary)


def _without_auxiliary(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + AUXILIARY)]:
        del state[name]


def inception_v3(
    channels: int,
    classes: int,
    width: int,
    norm: str,
    *,
    norm_scale: bool = True,
    pixels: tuple[int, int] | None = None,
) -> nn.Module:
    """Inception-v3; ``width`` must be 0, since it is fixed.

    Raises:
        BadInput: another width, no such norm, or images smaller than 75 pixels.
    """
    if width:
        raise BadInput(f"inception_v3 has a fixed width; model.width is {width}", hint="leave model.width at 0")
    if pixels is not None and min(pixels) < MIN_PIXELS:
        raise BadInput(f"inception_v3 needs images of at least 75×75 pixels; these have {pixels[0]}×{pixels[1]}")
    return InceptionV3(norm_maker(norm, scale=norm_scale, epsilon=EPSILON), channels=channels, classes=classes)
