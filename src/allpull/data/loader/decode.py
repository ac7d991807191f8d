"""Read and decode records of a pack into slots: only what a view needs, cropped, resized, mirrored and rotated."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.data.images import MAX_PIXELS, Refused, check_size, decode, import_simplejpeg
from allpull.data.jpeg.crop import LEFT_OVER, Box, crop, shortened
from allpull.data.loader.crop import Transform, View
from allpull.data.loader.order import Indices
from allpull.data.loader.resize import Array, Resizing, resize_middle, turn
from allpull.data.pack.read import Pack
from allpull.data.pack_format import JPEG, JPEG_SEGMENTS, PICTURE, RAW, Buffer, Header, PackError, Row, Rows
from allpull.errors import BadInput

WORTH_ROWS = 16  # below a crop: skipping fewer saves nothing
KEPT_BYTES = 1 << 23  # of each thread's decoding buffer; larger images are allocated


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as read: its ``row`` of the index, and ``whole`` with its table of ``row.tail`` bytes.

    For raw pixels of type ``dtype``, ``whole`` may start at pixel row ``first`` and end before the last: only the rows
    of the view are read.
    """

    row: Row
    whole: Buffer
    dtype: np.dtype[Any]
    first: int = 0

    @classmethod
    def of(cls, pack: Pack, index: int) -> StoredRecord:
        """Read all of record ``index``."""
        return cls(Row(*pack.rows[index].tolist()), pack.whole(index), np.dtype(pack.header.dtype))

    @property
    def image_bytes(self) -> Buffer:
        """The bytes without the table."""
        return memoryview(self.whole)[: len(self.whole) - self.row.tail]


class Decoder:
    """Decodes records into samples; thread-safe.

    ``fast`` uses libjpeg's faster, less exact DCT and up-sampling: some 10 % faster, with errors of a few levels.
    """

    def __init__(self, transform: Transform, by: Resizing, *, fast: bool = False, max_pixels: int = MAX_PIXELS) -> None:
        self.transform, self.fast, self.max_pixels = transform, fast, max_pixels
        self._by = by
        self._own = threading.local()

    def into(self, slot: Array, stored: StoredRecord, view: View) -> str:
        """Fill ``slot`` [size, size, channels] with the view of the record; returns what is unusual about it, or "".

        Raises:
            Refused: it cannot be decoded, or contradicts the index; the message is the reason.
        """
        pixels, unusual = self.pixels(stored, view.box)
        if pixels.shape[2] != slot.shape[2]:
            raise Refused(f"{pixels.shape[2]} channels instead of {slot.shape[2]}")
        if self.transform.crop == "centre":
            resize_middle(pixels, slot, self.transform)
        else:
            self._by.resize(pixels, slot)
        if view.mirrored:
            self._by.mirror(slot)
        if view.turns:
            turn(slot, view.turns)
        return unusual

    def pixels(self, stored: StoredRecord, box: Box) -> tuple[Array, str]:
        """The pixels of ``box`` [height, width, channels], valid until this thread's next call, and what is unusual.

        Raises:
            Refused: as ``into``.
        """
        row = stored.row
        height, width = row.height, row.width
        if row.codec == RAW:
            return _raw(stored, box), ""
        check_size(height, width, self.max_pixels)
        if row.codec == JPEG_SEGMENTS and (box.height, box.width) != (height, width):
            try:
                part = crop(stored.whole, row.tail, box)
                return _cut(self._jpeg(part.jpeg, None), part.box), ""
            except (PackError, ValueError, IndexError):
                damage = "damaged table of segments"  # the image itself may be intact
        else:
            damage = ""
        if row.codec in (JPEG, JPEG_SEGMENTS):
            try:
                top = self._top(stored, box) if row.codec == JPEG else None
                return _cut(self._jpeg(stored.image_bytes, (height, width)) if top is None else top, box), damage
            except ValueError:  # including libjpeg's warnings
                pass
        pixels, unusual = decode(stored.image_bytes, max_pixels=self.max_pixels)
        if pixels.shape[:2] != (height, width):
            raise Refused("a size that contradicts the index")
        of_codec = "" if row.codec == PICTURE else "JPEG of another kind"
        return _cut(pixels, box), unusual or damage or of_codec

    def _jpeg(self, data: Buffer, size: tuple[int, int] | None) -> Array:
        """Decode a JPEG with simplejpeg into this thread's buffer; ValueError if it fails or the size differs."""
        simplejpeg = import_simplejpeg()
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        if size not in (None, (height, width)):
            raise ValueError("another size")
        check_size(height, width, self.max_pixels)
        memory = self._buffer() if height * width * 3 <= KEPT_BYTES else None
        pixels: Array = simplejpeg.decode_jpeg(
            data, "RGB", fastdct=self.fast, fastupsample=self.fast, buffer=memory, strict=True
        )
        return pixels

    def _top(self, stored: StoredRecord, box: Box) -> Array | None:
        """The image down to the end of the box; None if that saves nothing or fails: then decode it fully."""
        row, bottom = stored.row, box.top + box.height
        if row.height - bottom < WORTH_ROWS or row.height * row.width * 3 > KEPT_BYTES:
            return None
        short = shortened(stored.image_bytes, (row.height, row.width), bottom)
        if short is None:
            return None
        size = short[1], row.width
        try:
            return self._jpeg(short[0], size)
        except ValueError as error:  # the pixels are decoded when libjpeg finds left-over data
            done: Array = self._buffer()[: size[0] * size[1] * 3].reshape(*size, 3)
            return done if LEFT_OVER in str(error) else None

    def _buffer(self) -> Any:
        """A reused buffer: fresh pages for each image cost a tenth of its decoding.

        It starts at an odd address: libjpeg-turbo writes rows aligned to 16 or 32 bytes around the caches (movntdq in
        jdcolext), and the resize that follows would read them back from main memory.
        """
        if not hasattr(self._own, "memory"):
            self._own.memory = np.empty(1 + KEPT_BYTES, np.uint8)[1:]  # allocators return even addresses
        return self._own.memory


def _raw(stored: StoredRecord, box: Box) -> Array:
    row, top = stored.row, box.top - stored.first
    pixels: Array = np.frombuffer(stored.whole, stored.dtype).reshape(-1, row.width, row.channels)
    return pixels[top : top + box.height, box.left : box.left + box.width]


def _cut(pixels: Array, box: Box) -> Array:
    part: Array = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    if part.shape[:2] != (box.height, box.width):
        raise Refused("a size that contradicts the index")
    return part


def form(directory: Path, header: Header, rows: Rows) -> tuple[int, str]:
    """Channels and type of the decoded records of a pack.

    Raises:
        BadInput: they are not the same for all records.
    """
    raw = rows["codec"] == RAW
    if not raw.any():
        return 3, "|u1"
    channels = np.unique(rows["channels"][raw])
    if len(channels) > 1 or not raw.all():
        raise BadInput(f"{directory}: records with different numbers of channels", hint="pack them separately")
    return int(channels[0]), header.dtype


JOB_RECORDS = 16  # smaller jobs balance threads better, larger ones have less overhead and longer reads
JOB_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class WantedSample:
    """One requested sample: its ``record`` and ``row`` of the index, its view, and its index in the batch's slot."""

    record: int
    row: Row
    view: View
    slot: int


@dataclass(frozen=True, slots=True)
class Job:
    """The samples of one batch that one thread loads, in the order of the pack."""

    epoch: int
    samples: list[WantedSample]


def jobs(pack: Pack, epoch: int, records: Indices, record_views: Sequence[View]) -> list[Job]:
    """The jobs of a batch of ``records`` [n] with their views, in pack order, so that neighbours share a read."""
    order = np.argsort(records, kind="stable")
    ascending = records[order]
    rows = map(Row._make, pack.rows[ascending].tolist())
    batch_jobs: list[Job] = []
    room = 0
    for slot, record, row in zip(order.tolist(), ascending.tolist(), rows, strict=True):
        if not batch_jobs or len(batch_jobs[-1].samples) >= JOB_RECORDS or row.length > room:
            batch_jobs.append(Job(epoch, []))
            room = JOB_BYTES
        batch_jobs[-1].samples.append(WantedSample(record, row, record_views[slot], slot))
        room -= row.length
    return batch_jobs


def read(pack: Pack, samples: Sequence[WantedSample], memory: memoryview) -> Iterator[StoredRecord]:
    """The records of ``samples``, each valid until the next but one is requested; one read for neighbours.

    Of single raw records whose checksum was compared, only the rows of the view are read; ``memory`` is the buffer if
    large enough.
    """
    dtype = np.dtype(pack.header.dtype)
    for run in _runs(samples):
        first, last = run[0].row, run[-1].row
        if len(run) == 1 and first.codec == RAW and pack.was_checked(run[0].record):
            box, line = run[0].view.box, first.length // first.height
            part = pack.read_range(first.shard, first.offset + box.top * line, box.height * line, memory)
            yield StoredRecord(first, part, dtype, box.top)
            continue
        block = memoryview(pack.read_range(first.shard, first.offset, last.offset + last.length - first.offset, memory))
        for one in run:
            begin = one.row.offset - first.offset
            yield StoredRecord(one.row, block[begin : begin + one.row.length], dtype)


def _runs(samples: Sequence[WantedSample]) -> Iterator[Sequence[WantedSample]]:
    """Split ascending samples into runs of neighbours in the same file."""
    start = 0
    for at in range(1, len(samples) + 1):
        if at < len(samples):
            before, after = samples[at - 1], samples[at]
            if after.record == before.record + 1 and after.row.shard == before.row.shard:
                continue
        yield samples[start:at]
        start = at
