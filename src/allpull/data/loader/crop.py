"""The crop, mirroring and rotation of each sample, as a function of (seed, epoch, sample)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from allpull.data.jpeg.crop import Box
from allpull.data.loader.order import Uniforms

Sizes = npt.NDArray[np.int64]

ATTEMPTS = 10  # as in torchvision's RandomResizedCrop, which then takes the centre
AREA_AND_ASPECT = 2 * ATTEMPTS
TOP, LEFT, MIRROR, TURN = range(AREA_AND_ASPECT, AREA_AND_ASPECT + 4)
DRAWS = AREA_AND_ASPECT + 4  # numbers per sample, used or not: an option changes no other number


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """How images become samples of ``size`` × ``size`` pixels.

    ``crop`` "random": a box with a share of the area in ``area`` and a width / height in ``aspect``, resized;
    "centre", for evaluation: resized to a shorter side of ``short_side`` pixels, then the centre; "whole": the full
    image, resized if necessary. ``mirror`` half of them horizontally; ``turn`` by 0, 90, 180 or 270 degrees.
    """

    size: int
    crop: Literal["random", "centre", "whole"] = "random"
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    short_side: int = 256
    mirror: bool = False
    turn: bool = False

    def __post_init__(self) -> None:
        area_ok = 0 < self.area[0] <= self.area[1] <= 1
        aspect_ok = 0 < self.aspect[0] <= self.aspect[1]
        if self.size < 1 or not area_ok or not aspect_ok or (self.crop == "centre" and self.short_side < self.size):
            raise ValueError(f"impossible transform: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The crop of one sample; mirrored first, then rotated by ``turns`` × 90 degrees counter-clockwise."""

    box: Box
    mirrored: bool = False
    turns: int = 0


def views(transform: Transform, sizes: Sizes, draws: Uniforms) -> list[View]:
    """The view of each of n images.

    Args:
        transform: the options.
        sizes: [n, 2], height and width in pixels.
        draws: [n, DRAWS] in [0, 1), of ``order.uniforms``.
    """
    boxes = (
        random_boxes(transform, sizes, draws)
        if transform.crop == "random"
        else np.hstack([np.zeros_like(sizes), sizes])
    )
    mirrored = (draws[:, MIRROR] < 0.5) & transform.mirror
    turns = np.floor(draws[:, TURN] * 4).astype(np.int64) * transform.turn
    return [
        View(box=Box(top=top, left=left, height=height, width=width), mirrored=bool(flip), turns=int(turn))
        for (top, left, height, width), flip, turn in zip(boxes.tolist(), mirrored, turns, strict=True)
    ]


def random_boxes(transform: Transform, sizes: Sizes, draws: Uniforms) -> Sizes:
    """Boxes [n, 4] (top, left, height, width): the "Inception" crop (Szegedy et al. 2015), as in torchvision.

    Area uniform, aspect log-uniform; the first of ten attempts that fits, otherwise the largest centred box of a valid
    aspect.
    """
    heights, widths = sizes[:, 0], sizes[:, 1]
    area = transform.area[0] + draws[:, 0:AREA_AND_ASPECT:2] * (transform.area[1] - transform.area[0])
    low, high = np.log(transform.aspect)
    aspect = np.exp(low + draws[:, 1:AREA_AND_ASPECT:2] * (high - low))
    pixels = area * (heights * widths)[:, None]
    tried_w = np.rint(np.sqrt(pixels * aspect)).astype(np.int64)
    tried_h = np.rint(np.sqrt(pixels / aspect)).astype(np.int64)
    fits = (tried_w >= 1) & (tried_h >= 1) & (tried_w <= widths[:, None]) & (tried_h <= heights[:, None])
    first = np.argmax(fits, axis=1)
    valid, each = fits.any(axis=1), np.arange(len(sizes))
    box_w = np.where(valid, tried_w[each, first], np.rint(np.minimum(widths, heights * transform.aspect[1])))
    box_h = np.where(valid, tried_h[each, first], np.rint(np.minimum(heights, widths / transform.aspect[0])))
    box_w, box_h = np.clip(box_w, 1, widths).astype(np.int64), np.clip(box_h, 1, heights).astype(np.int64)
    top = np.where(valid, np.floor(draws[:, TOP] * (heights - box_h + 1)), (heights - box_h) // 2)
    left = np.where(valid, np.floor(draws[:, LEFT] * (widths - box_w + 1)), (widths - box_w) // 2)
    return np.stack([top, left, box_h, box_w], axis=1).astype(np.int64)


def middle(transform: Transform, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Evaluation: the (height, width) that an image is resized to, and (top, left) of the centre crop in it.

    >>> middle(Transform(size=224, crop="centre"), 375, 500)
    ((256, 341), (16, 58))
    """
    short = min(height, width)
    tall, wide = transform.short_side * height // short, transform.short_side * width // short
    return (tall, wide), (round((tall - transform.size) / 2), round((wide - transform.size) / 2))
