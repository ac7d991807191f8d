"""Mean and deviation of a pack's channels, from a fixed sample of its records: reckoned when the pack is made."""

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

MOST, FEWEST = 256, 16  # records looked at: of 256 photographs the mean is within some 2 % of that of all
PIXELS = 1 << 27  # looked at in all, where that allows more: half a second of decoding for 256 of 0.5 megapixels
ROWS_PIXELS = 1 << 16  # taken to floating point at a time

Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of each channel, in units of the stored numbers; a constant channel has 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def statistics(pack: Pack, *, channels: int, threads: int) -> Statistics:
    """Those of ``pack``, of which every shard must be open: of whole pictures, each with equal weight.

    The sample depends on the number and sizes of the records alone.

    Raises:
        BadInput: none of the sample can be decoded, or it holds numbers that are not finite.
    """
    chosen = sample(pack.rows)
    with ThreadPoolExecutor(threads, thread_name_prefix="allpull-load") as pool:
        sums = list(pool.map(lambda record: _moments(pack, record, channels), chosen))
    found = np.array([one for one in sums if one is not None])
    if not len(found):
        where = pack.directory
        raise BadInput(f"{where}: of {len(chosen)} records not one can be decoded", hint="try allpull pack verify")
    if not np.isfinite(found).all():
        raise BadInput(
            f"{pack.directory}: pixels that are not finite numbers", hint="mend the source and pack it again"
        )
    mean, square = found.mean(axis=0)
    std = np.sqrt(np.maximum(square - mean**2, 0))
    return Statistics(mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))


def sample(rows: Rows) -> list[int]:
    """Records to look at, ascending: fewer where pictures are large."""
    pixels = rows["height"].astype(np.float64) * rows["width"]
    count = min(len(rows), max(FEWEST, min(MOST, int(PIXELS / pixels.mean()))))
    generator = np.random.Generator(np.random.Philox(key=[0, 0]))
    chosen: list[int] = np.sort(generator.choice(len(rows), count, replace=False)).tolist()
    return chosen


def _moments(pack: Pack, record: int, channels: int) -> Sums | None:
    """Means of the pixels and of their squares [2, channels]; None where they cannot be decoded."""
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
