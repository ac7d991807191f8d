"""A crop of a JPEG as a small JPEG, from only those restart segments that cover it: nothing else is decoded.

Its pixels are those that cropping the decoded whole would give, to the bit: cut at segments, each decoded as it always
was; where planes are subsampled and decoders interpolate between chroma samples, two pixels more are kept around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allpull.pack.format import Buffer
from allpull.pack.restart import Segments, parse_segments

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
    """A small JPEG, and where in its pixels the box is that was asked for."""

    jpeg: bytes
    box: Box


def crop(whole: Buffer, tail: int, box: Box) -> Cropped:
    """The part of a record that covers ``box``, which lies within the picture; ``whole`` and ``tail`` as in the pack.

    Raises:
        PackError: the record's table does not fit it.
        ValueError: the box is empty or leaves the picture.
    """
    view = memoryview(whole)
    jpeg = view[: len(view) - tail]
    table = parse_segments(view[len(view) - tail :], len(jpeg))
    height = int.from_bytes(jpeg[table.size_at : table.size_at + 2], "big")
    width = int.from_bytes(jpeg[table.size_at + 2 : table.size_at + 4], "big")
    inside = box.top >= 0 and box.left >= 0 and box.top + box.height <= height and box.left + box.width <= width
    if not inside or box.height < 1 or box.width < 1:
        raise ValueError(f"{box} of a picture of {width} × {height} pixels")
    margin = MARGIN_PIXELS if table.subsampled else 0
    step = table.interval * table.mcu_width
    first_row, end_row = _cover(box.top, box.height, margin, table.mcu_height, table.rows)
    first, end = _cover(box.left, box.width, margin, step, table.columns // table.interval)
    top, left = first_row * table.mcu_height, first * step
    size = min(end_row * table.mcu_height, height) - top, min(end * step, width) - left
    data = _assemble(jpeg, table, (first_row, end_row), (first, end), size)
    return Cropped(jpeg=data, box=Box(top=box.top - top, left=box.left - left, height=box.height, width=box.width))


def _cover(start: int, length: int, margin: int, step: int, count: int) -> tuple[int, int]:
    """Of ``count`` pieces of ``step`` pixels: the first and the end of those that cover a stretch and its margin."""
    return max(0, start - margin) // step, min(count, -(-(start + length + margin) // step))


def _assemble(
    jpeg: memoryview, table: Segments, rows: tuple[int, int], across: tuple[int, int], size: tuple[int, int]
) -> bytes:
    """Header with the new ``size``, then the segments of each row; restart markers numbered anew."""
    a_row = table.columns // table.interval
    ends = np.cumsum(table.lengths, dtype=np.int64) + 2 * np.arange(1, len(table.lengths) + 1)  # marker included
    begins = np.concatenate([[0], ends[:-1]])
    head = bytearray(jpeg[: table.scan_at])
    head[table.size_at : table.size_at + 4] = size[0].to_bytes(2, "big") + size[1].to_bytes(2, "big")
    parts: list[Buffer | bytearray] = [head]
    for row in range(*rows):
        start, stop = begins[row * a_row + across[0]], ends[row * a_row + across[1] - 1]
        parts.append(jpeg[table.scan_at + int(start) : table.scan_at + int(stop)])
    done = np.frombuffer(bytearray().join(parts), np.uint8)
    chosen = (table.lengths.reshape(table.rows, a_row)[rows[0] : rows[1], across[0] : across[1]]).ravel()
    markers = len(head) - 1 + np.cumsum(chosen.astype(np.int64) + 2)  # the second byte of each
    done[markers] = 0xD0 + np.arange(len(markers)) % 8
    done[markers[-1]] = 0xD9
    return done.tobytes()
