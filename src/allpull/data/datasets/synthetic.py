"""Synthetic data, to measure without a data set: random bytes as images, random classes."""

from __future__ import annotations

import numpy as np

from allpull.data.datasets.dataset import Dataset, Part
from allpull.errors import BadInput
from allpull.units import show_bytes

SAMPLES = 1280
TEST_SAMPLES = 256
SIZE = 224
CHANNELS = 3
CLASSES = 1000
SHIFT_BYTES = 64  # offset between images: memory is 64 bytes per sample plus one image


def synthetic(*, samples: int = 0, size: int = 0, seed: int = 0) -> Dataset:
    """``samples`` (0: 1,280) training images, 256 test images, [n, size, size, 3] (0: 224 pixels); 1,000 classes.

    Image i starts 64·i bytes into one stream of random bytes: all differ, and any number needs little memory. Mean
    and standard deviation are those of a uniform byte.

    Raises:
        BadInput: they do not fit in memory.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    samples, size = samples or SAMPLES, size or SIZE
    total, image_bytes = samples + TEST_SAMPLES, size * size * CHANNELS
    needed = (total - 1) * SHIFT_BYTES + image_bytes
    try:
        stream = generator.integers(0, 256, needed, np.uint8)
    except MemoryError:
        raise BadInput(
            f"synthetic data: {samples:,} samples take {show_bytes(needed)} of memory, more than there is",
            hint="set a smaller data.limit",
        ) from None
    windows = np.lib.stride_tricks.sliding_window_view(stream, image_bytes)[::SHIFT_BYTES]
    images = windows.reshape(total, size, size, CHANNELS)  # a view
    labels = generator.integers(0, CLASSES, total)
    return Dataset(
        name="synthetic",
        train=Part(images=images[:samples], labels=labels[:samples]),
        test=Part(images=images[samples:], labels=labels[samples:]),
        classes=CLASSES,
        mean=127.5,
        std=((256**2 - 1) / 12) ** 0.5,
    )
