"""Mean and deviation of a pack's channels, from a fixed sample of its records: the same on every rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput
from allpull.load.crop import Look
from allpull.load.decode import Decoder, Stored
from allpull.load.resize import resizing
from allpull.pack.crop import Box
from allpull.pack.format import Rows
from allpull.pack.pixels import Refused
from allpull.pack.read import Pack

MOST, FEWEST = 256, 16  # records looked at: of 256 photographs the mean is within some 2 % of that of all
PIXELS = (
    1 << 27
)  # looked at in all, where that allows more than the fewest: half a second of decoding for 256 of 0.5 Mpx
ROWS_PIXELS = 1 << 16  # taken to floating point at a time

Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of each channel, in units of the stored numbers; a constant channel has 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_statistics(directory: Path, *, channels: int, threads: int) -> Statistics:
    """The statistics of the pack in ``directory``: of whole pictures, each with equal weight.

    The sample does not depend on rank, ranks, seed or threads. All shards are opened for it, and closed again.

    Raises:
        BadInput: none of the sample can be decoded, or it holds numbers that are not finite.
    """
    with Pack.open(directory) as pack, ThreadPoolExecutor(threads, thread_name_prefix="allpull-load") as pool:
        decoder = Decoder(Look(size=1, crop="whole"), resizing("pillow"))
        chosen = sample(pack.rows)
        sums = list(pool.map(lambda record: _moments(decoder, pack, record, channels), chosen))
    found = np.array([one for one in sums if one is not None])
    if not len(found):
        raise BadInput(f"{directory}: of {len(chosen)} records not one can be decoded", hint="try allpull pack verify")
    if not np.isfinite(found).all():
        raise BadInput(f"{directory}: pixels that are not finite numbers", hint="mend the source and pack it again")
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


def _moments(decoder: Decoder, pack: Pack, record: int, channels: int) -> Sums | None:
    """Means of the pixels and of their squares [2, channels]; None where they cannot be decoded."""
    stored = Stored.of(pack, record)
    try:
        pixels, _ = decoder.pixels(stored, Box(top=0, left=0, height=stored.row.height, width=stored.row.width))
    except Refused:
        return None
    if pixels.shape[2] != channels:
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
