"""Crop a JPEG without decoding the rest: a small JPEG of only the restart segments that cover the crop.

Its pixels are bit-identical to a crop of the decoded image: cuts are at segments, which decode independently; if chroma
is subsampled and decoders interpolate between chroma samples, a margin of two pixels is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allpull.data.jpeg.header import BASELINE, EXTENDED, parse_jpeg
from allpull.data.jpeg.restart import Segments, parse_segments
from allpull.data.pack_format import Buffer

LEFT_OVER = "extraneous bytes before marker 0xd9"  # libjpeg's warning (jerror.h); for a damaged scan it has others
MARGIN_PIXELS = 2  # one chroma sample: libjpeg's triangle filter reaches no further (jdsample.c)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of pixels: ``top``, ``left`` and its size."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cropped:
    """A small JPEG, and the position of the requested box in it."""

    jpeg: bytes
    box: Box


def crop(whole: Buffer, tail: int, box: Box) -> Cropped:
    """The part of a record that covers ``box``, which must be within the image; ``whole`` and ``tail`` as in the pack.

    Raises:
        PackError: the record's table contradicts it.
        ValueError: the box is empty or exceeds the image.
    """
    view = memoryview(whole)
    jpeg = view[: len(view) - tail]
    table = parse_segments(view[len(view) - tail :], len(jpeg))
    height = int.from_bytes(jpeg[table.size_at : table.size_at + 2], "big")
    width = int.from_bytes(jpeg[table.size_at + 2 : table.size_at + 4], "big")
    inside = box.top >= 0 and box.left >= 0 and box.top + box.height <= height and box.left + box.width <= width
    if not inside or box.height < 1 or box.width < 1:
        raise ValueError(f"{box} of an image of {width} × {height} pixels")
    margin = MARGIN_PIXELS if table.subsampled else 0
    step = table.interval * table.mcu_width
    first_row, end_row = _cover(box.top, box.height, margin, table.mcu_height, table.rows)
    first, end = _cover(box.left, box.width, margin, step, table.columns // table.interval)
    top, left = first_row * table.mcu_height, first * step
    size = min(end_row * table.mcu_height, height) - top, min(end * step, width) - left
    data = _assemble(jpeg, table, (first_row, end_row), (first, end), size)
    return Cropped(jpeg=data, box=Box(top=box.top - top, left=box.left - left, height=box.height, width=box.width))


def shortened(jpeg: Buffer, size: tuple[int, int], bottom: int) -> tuple[bytes, int] | None:
    """A JPEG of ``size`` with a reduced height in its header, and that height: decoders stop soon after row ``bottom``.

    The remaining pixels are bit-identical. The data below stay in the file, and decoders warn with ``LEFT_OVER``. None
    if the size differs, if it is impossible (several scans, restart markers of its own), or if nothing is gained.

    Raises:
        NotJpeg: its header is damaged.
    """
    header = parse_jpeg(jpeg)
    unit = header.mcu[0]
    height = -(-(bottom + MARGIN_PIXELS) // unit) * unit
    sequential = header.frame in (BASELINE, EXTENDED) and header.whole_scan and header.interval == 0
    if height >= header.height or size != (header.height, header.width) or not sequential:
        return None
    at = header.size_at
    return b"".join((jpeg[:at], height.to_bytes(2, "big"), jpeg[at + 2 :])), height


def _cover(start: int, length: int, margin: int, step: int, count: int) -> tuple[int, int]:
    """Of ``count`` pieces of ``step`` pixels: the first and the end of those that cover a range and its margin."""
    return max(0, start - margin) // step, min(count, -(-(start + length + margin) // step))


def _assemble(
    jpeg: memoryview, table: Segments, rows: tuple[int, int], across: tuple[int, int], size: tuple[int, int]
) -> bytes:
    """The header with the new ``size``, then the segments of each row; restart markers are renumbered."""
    per_row = table.columns // table.interval
    steps = table.lengths.reshape(table.rows, per_row) + np.int64(2)  # markers included
    ends = steps.cumsum().reshape(steps.shape)[rows[0] : rows[1]]
    steps = steps[rows[0] : rows[1]]
    starts, stops = ends[:, across[0]] - steps[:, across[0]], ends[:, across[1] - 1]
    head = bytearray(jpeg[: table.scan_at])
    head[table.size_at : table.size_at + 4] = size[0].to_bytes(2, "big") + size[1].to_bytes(2, "big")
    scan = jpeg[table.scan_at :]
    parts = [scan[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    done = np.frombuffer(bytearray().join([head, *parts]), np.uint8)
    markers = steps[:, across[0] : across[1]].ravel().cumsum() + (len(head) - 1)  # the second byte of each
    done[markers] = 0xD0 + np.arange(len(markers)) % 8
    done[markers[-1]] = 0xD9
    return done.tobytes()
