"""Mean and standard deviation of a pack's channels, from a fixed sample of records; computed when it is made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allpull.data.images import Refused, decode
from allpull.data.pack.read import Pack
from allpull.data.pack_format import RAW, Rows
from allpull.errors import BadInput

MOST, FEWEST = 256, 16  # records sampled: the mean of 256 photographs is within some 2 % of that of all
PIXELS = 1 << 27  # sampled in total, if that allows more: half a second of decoding for 256 of 0.5 megapixels
ROWS_PIXELS = 1 << 16  # converted to floating point at a time

Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of each channel, in units of the stored numbers; a constant channel has 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def statistics(pack: Pack, *, channels: int, threads: int) -> Statistics:
    """The statistics of ``pack``, all of whose shards must be open: over whole images, with equal weight.

    The sample depends on the number and sizes of the records alone.

    Raises:
        BadInput: no sampled record can be decoded, or pixels are not finite.
    """
    chosen = sample(pack.rows)
    with ThreadPoolExecutor(threads, thread_name_prefix="allpull-load") as pool:
        sums = list(pool.map(lambda record: _moments(pack, record, channels), chosen))
    moments = np.array([one for one in sums if one is not None])
    if not len(moments):
        where = pack.directory
        raise BadInput(f"{where}: none of {len(chosen)} records can be decoded", hint="run allpull pack verify")
    if not np.isfinite(moments).all():
        raise BadInput(
            f"{pack.directory}: pixels that are not finite numbers", hint="repair the source and pack it again"
        )
    mean, square = moments.mean(axis=0)
    std = np.sqrt(np.maximum(square - mean**2, 0))
    return Statistics(mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))


def sample(rows: Rows) -> list[int]:
    """The records to sample, ascending: fewer if images are large."""
    pixels = rows["height"].astype(np.float64) * rows["width"]
    count = min(len(rows), max(FEWEST, min(MOST, int(PIXELS / pixels.mean()))))
    generator = np.random.Generator(np.random.Philox(key=[0, 0]))
    chosen: list[int] = np.sort(generator.choice(len(rows), count, replace=False)).tolist()
    return chosen


def _moments(pack: Pack, record: int, channels: int) -> Sums | None:
    """Means of the pixels and of their squares [2, channels]; None if they cannot be decoded."""
    row = pack.rows[record]
    try:
        pixels = pack.pixels(record) if row["codec"] == RAW else decode(pack.record(record))[0]
    except Refused:
        return None
    if pixels.shape != (row["height"], row["width"], channels):
        return None
    return _means(pixels)


def _means(pixels: npt.NDArray[Any]) -> Sums:
    height, width, channels = pixels.shape
    rows = max(1, ROWS_PIXELS // width)
    sums = np.zeros((2, channels))
    for top in range(0, height, rows):
        some = pixels[top : top + rows].reshape(-1, channels).astype(np.float64)
        sums += some.sum(axis=0), (some**2).sum(axis=0)
    sums /= height * width
    return sums
