"""Shift and mirror images, from numbers that belong to the sample."""

from __future__ import annotations

import numpy as np

from allpull.data.datasets.dataset import Bytes
from allpull.data.loader.order import Uniforms

DRAWS = 3  # vertical shift, horizontal shift, mirror


def augment(images: Bytes, draws: Uniforms, *, shift_pixels: int, flip: bool) -> Bytes:
    """Each image shifted by up to ``shift_pixels`` each way (zeros come in) and, with ``flip``, half mirrored.

    Args:
        images: [n, height, width, channels].
        draws: [n, DRAWS] in [0, 1).
        shift_pixels: largest shift, 0 for none.
        flip: whether half of the images are mirrored left to right.

    Returns:
        A new array of the same shape.
    """
    count, height, width, _ = images.shape
    steps = np.floor(draws[:, :2] * (2 * shift_pixels + 1)).astype(np.int64)
    padded = np.pad(images, ((0, 0), (shift_pixels, shift_pixels), (shift_pixels, shift_pixels), (0, 0)))
    rows = steps[:, 0, None] + np.arange(height)
    columns = steps[:, 1, None] + np.arange(width)
    if flip:
        mirrored = draws[:, 2] < 0.5
        columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    moved: Bytes = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved
