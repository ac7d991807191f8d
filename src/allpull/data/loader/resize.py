"""Resize pixels into a slot: with OpenCV or Pillow in training, with Pillow's antialiased filter in evaluation.

OpenCV's linear filter reads four pixels per output pixel at any scale: fast, aliased, and good enough for training.
Scores must not depend on installed libraries, so evaluation never uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from allpull.data.images import import_pillow
from allpull.data.loader.crop import Transform, middle
from allpull.errors import MissingPart

Array = npt.NDArray[Any]
Resizer = Literal["auto", "opencv", "pillow"]
Resize = Callable[[Array, Array], None]
"""From pixels [height, width, channels] into a slot [height, width, channels] of the same type."""
Mirror = Callable[[Array], None]
"""Mirrors a slot horizontally in place."""
OPENCV_CHANNELS = 128  # limit of OpenCV 5; hyperspectral sensors have some 220
Edges = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the source


@dataclass(frozen=True, slots=True)
class Resizing:
    """The functions that write pixels into slots in training, and their library."""

    name: str
    resize: Resize
    mirror: Mirror


def resizing(name: Resizer) -> Resizing:
    """The resizer of training; "auto" is OpenCV if it is installed, otherwise Pillow.

    Raises:
        MissingPart: "opencv" is not installed.
    """
    if name != "pillow":
        try:
            cv2 = import_module("cv2")  # optional, and without types
        except ImportError as error:
            if name == "opencv":
                raise MissingPart("OpenCV is not installed", hint="pip install opencv-python-headless") from error
        else:
            cv2.setNumThreads(1)  # the loader has its own threads
            return _opencv(cv2)
    return Resizing("pillow", resize_antialiased, turn)


def _opencv(cv2: Any) -> Resizing:
    def resize(pixels: Array, slot: Array) -> None:
        channels = slot.shape[2]
        size = slot.shape[1], slot.shape[0]
        if pixels.shape == slot.shape:
            slot[:] = pixels
        elif channels <= OPENCV_CHANNELS:
            cv2.resize(pixels, size, dst=slot, interpolation=cv2.INTER_LINEAR)
        else:
            for first in range(0, channels, OPENCV_CHANNELS):
                some = slice(first, min(first + OPENCV_CHANNELS, channels))
                made = cv2.resize(np.ascontiguousarray(pixels[..., some]), size, interpolation=cv2.INTER_LINEAR)
                slot[..., some] = made.reshape(*slot.shape[:2], -1)  # cv2 drops a single channel's dimension

    def mirror(slot: Array) -> None:
        if slot.shape[2] <= OPENCV_CHANNELS:
            cv2.flip(slot, 1, dst=slot)
        else:
            turn(slot)

    return Resizing("opencv", resize, mirror)


def turn(slot: Array, quarter_turns: int | None = None) -> None:
    """Rotate a contiguous square slot counter-clockwise in place, or mirror it horizontally if no number is given.

    It moves whole pixels: three times as fast as by channel.
    """
    pixels = slot.view(np.dtype((np.void, slot.itemsize * slot.shape[2])))[..., 0]
    pixels[:] = pixels[:, ::-1] if quarter_turns is None else np.rot90(pixels, quarter_turns)


def resize_antialiased(pixels: Array, slot: Array, edges: Edges | None = None) -> None:
    """Pillow's bilinear filter, as wide as the scale requires, from ``edges`` (default: everything) into ``slot``.

    The filter reads across the edges, so cropping by ``edges`` equals resizing all and then cropping.
    """
    if pixels.shape == slot.shape and edges is None:
        slot[:] = pixels
        return
    image = import_pillow()
    size = slot.shape[1], slot.shape[0]
    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        whole = image.fromarray(np.ascontiguousarray(pixels))
        slot[:] = np.asarray(whole.resize(size, image.Resampling.BILINEAR, box=edges))
        return
    for channel in range(pixels.shape[2]):  # Pillow has no images of more channels or wider integers
        plane = image.fromarray(np.ascontiguousarray(pixels[..., channel], dtype=np.float32))
        made = np.asarray(plane.resize(size, image.Resampling.BILINEAR, box=edges))
        slot[..., channel] = made if slot.dtype.kind == "f" else np.rint(made)


def resize_middle(pixels: Array, slot: Array, transform: Transform) -> None:
    """Evaluation: resize the shorter side to ``short_side`` and crop the centre, in one step."""
    height, width = pixels.shape[:2]
    (tall, wide), (top, left) = middle(transform, height, width)
    across, down = width / wide, height / tall
    edges = (
        left * across,
        top * down,
        min(width, (left + transform.size) * across),
        min(height, (top + transform.size) * down),
    )
    resize_antialiased(pixels, slot, edges)
