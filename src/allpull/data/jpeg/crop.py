"""A crop of a JPEG as a small JPEG, from only those restart segments that cover it: nothing else is decoded.

Its pixels are those that cropping the decoded whole would give, to the bit: cut at segments, each decoded as it always
was; where planes are subsampled and decoders interpolate between chroma samples, two pixels more are kept around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allpull.data.jpeg.header import BASELINE, EXTENDED, parse_jpeg
from allpull.data.jpeg.restart import Segments, parse_segments
from allpull.data.pack_format import Buffer

LEFT_OVER = "extraneous bytes before marker 0xd9"  # libjpeg's words (jerror.h); of a damaged scan it warns otherwise
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


def shortened(jpeg: Buffer, size: tuple[int, int], bottom: int) -> tuple[bytes, int] | None:
    """A JPEG of ``size`` with a smaller height in its header, and that height: decoders end soon after row ``bottom``.

    The pixels that are left are those of the whole, to the bit. What was coded below them stays, and decoders warn of
    it as ``LEFT_OVER``. None where it has another size, where it cannot be done (several scans, restart markers of its
    own), or where nothing would be won.

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
    """Of ``count`` pieces of ``step`` pixels: the first and the end of those that cover a stretch and its margin."""
    return max(0, start - margin) // step, min(count, -(-(start + length + margin) // step))


def _assemble(
    jpeg: memoryview, table: Segments, rows: tuple[int, int], across: tuple[int, int], size: tuple[int, int]
) -> bytes:
    """Header with the new ``size``, then the segments of each row; restart markers numbered anew."""
    a_row = table.columns // table.interval
    steps = table.lengths.reshape(table.rows, a_row) + np.int64(2)  # markers included
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
