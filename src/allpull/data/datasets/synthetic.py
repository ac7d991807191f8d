"""Synthetic data, to measure without a data set: random bytes as images, random classes."""

from __future__ import annotations

import numpy as np

from allpull.data.datasets.dataset import Dataset, Part
from allpull.errors import BadInput
from allpull.units import show_bytes

SAMPLES = 1280
TEST_SAMPLES = 256
SIZE = 224
BANDS = 3
CLASSES = 1000
LABELS = 3  # positive labels per sample, on average; BigEarthNet has 2.9 of 43 (Sumbul et al. 2019)
SHIFT_BYTES = 64  # offset between images: memory is 64 bytes per sample plus one image


def synthetic(
    *, samples: int = 0, size: int = 0, bands: int = 0, classes: int = 0, multi_label: bool = False, seed: int = 0
) -> Dataset:
    """``samples`` training images and 256 test images [n, size, size, bands], each of one class or with several labels.

    0 stands for 1,280 samples, 224 pixels, 3 bands and 1,000 classes. With ``multi_label``, labels are zeros and ones
    [n, classes], about three of them ones.

    Image i starts 64·i bytes into one stream of random bytes: all differ, and any number needs little memory. Mean
    and standard deviation are those of a uniform byte.

    Raises:
        BadInput: they do not fit in memory.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    samples, size, bands, classes = samples or SAMPLES, size or SIZE, bands or BANDS, classes or CLASSES
    total, image_bytes = samples + TEST_SAMPLES, size * size * bands
    needed = (total - 1) * SHIFT_BYTES + image_bytes
    try:
        stream = generator.integers(0, 256, needed, np.uint8)
    except MemoryError:
        raise BadInput(
            f"synthetic data: {samples:,} samples take {show_bytes(needed)} of memory, more than there is",
            hint="set a smaller data.limit",
        ) from None
    windows = np.lib.stride_tricks.sliding_window_view(stream, image_bytes)[::SHIFT_BYTES]
    images = windows.reshape(total, size, size, bands)  # a view
    if multi_label:
        ones = (generator.random(total + classes - 1) < min(0.5, LABELS / classes)).astype(np.int64)
        labels = np.lib.stride_tricks.sliding_window_view(ones, classes)  # another view
    else:
        labels = generator.integers(0, classes, total)
    return Dataset(
        name="synthetic",
        train=Part(images=images[:samples], labels=labels[:samples]),
        test=Part(images=images[samples:], labels=labels[samples:]),
        classes=classes,
        mean=127.5,
        std=((256**2 - 1) / 12) ** 0.5,
    )
