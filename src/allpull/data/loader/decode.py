"""One record of a pack into one slot: decoded as little as its view needs, cut, resized, mirrored and turned."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.data.images import MAX_PIXELS, Refused, check_size, decode, import_simplejpeg
from allpull.data.jpeg.crop import LEFT_OVER, Box, crop, shortened
from allpull.data.loader.crop import Look, View
from allpull.data.loader.order import Indices
from allpull.data.loader.resize import Array, Resizing, resize_middle, turn
from allpull.data.pack.read import Pack
from allpull.data.pack_format import JPEG, JPEG_SEGMENTS, PICTURE, RAW, Buffer, Header, PackError, Row, Rows
from allpull.errors import BadInput

WORTH_ROWS = 16  # below a crop: fewer are decoded as fast as they are left out
KEPT_BYTES = 1 << 23  # of each thread's own memory for decoding; larger pictures get theirs from the system


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was read: ``row`` of the index, and ``whole`` with its table of ``row.tail`` bytes.

    Of raw pixels, which are of type ``dtype``, ``whole`` may begin at the row of pixels ``first`` and end before the
    last: what a view does not show need not be read.
    """

    row: Row
    whole: Buffer
    dtype: np.dtype[Any]
    first: int = 0

    @classmethod
    def of(cls, pack: Pack, index: int) -> Stored:
        """Record ``index``, read now, all of it."""
        return cls(Row(*pack.rows[index].tolist()), pack.whole(index), np.dtype(pack.header.dtype))

    @property
    def picture(self) -> Buffer:
        """The bytes without the table."""
        return memoryview(self.whole)[: len(self.whole) - self.row.tail]


class Decoder:
    """Makes samples of records; any number of threads may use one.

    ``fast`` lets libjpeg take its quicker, less exact transform and up-sampling: some 10 % faster, off by a few levels.
    """

    def __init__(self, look: Look, by: Resizing, *, fast: bool = False, max_pixels: int = MAX_PIXELS) -> None:
        self.look, self.fast, self.max_pixels = look, fast, max_pixels
        self._by = by
        self._own = threading.local()

    def into(self, slot: Array, stored: Stored, view: View) -> str:
        """Fill ``slot`` [size, size, channels] with the view of the record; what was odd about it, or "".

        Raises:
            Refused: it cannot be decoded, or is not what the index says; the message is the reason.
        """
        pixels, odd = self.pixels(stored, view.box)
        if pixels.shape[2] != slot.shape[2]:
            raise Refused(f"{pixels.shape[2]} channels where the others have {slot.shape[2]}")
        if self.look.crop == "centre":
            resize_middle(pixels, slot, self.look)
        else:
            self._by.resize(pixels, slot)
        if view.mirrored:
            self._by.mirror(slot)
        if view.turns:
            turn(slot, view.turns)
        return odd

    def pixels(self, stored: Stored, box: Box) -> tuple[Array, str]:
        """The pixels of ``box`` [height, width, channels], valid until this thread's next call, and what was odd.

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
                odd = "damaged table of segments"  # the picture itself may be well
        else:
            odd = ""
        if row.codec in (JPEG, JPEG_SEGMENTS):
            try:
                top = self._top(stored, box) if row.codec == JPEG else None
                return _cut(self._jpeg(stored.picture, (height, width)) if top is None else top, box), odd
            except ValueError:  # also what libjpeg only warns of
                pass
        pixels, found = decode(stored.picture, max_pixels=self.max_pixels)
        if pixels.shape[:2] != (height, width):
            raise Refused("another size than the index says")
        return _cut(pixels, box), found or odd if row.codec == PICTURE else found or odd or "JPEG of another kind"

    def _jpeg(self, data: Buffer, size: tuple[int, int] | None) -> Array:
        """A JPEG by the fast decoder, into this thread's memory; ValueError where it will not, or has another size."""
        simplejpeg = import_simplejpeg()
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        if size not in (None, (height, width)):
            raise ValueError("another size")
        check_size(height, width, self.max_pixels)
        memory = self._memory() if height * width * 3 <= KEPT_BYTES else None
        pixels: Array = simplejpeg.decode_jpeg(
            data, "RGB", fastdct=self.fast, fastupsample=self.fast, buffer=memory, strict=True
        )
        return pixels

    def _top(self, stored: Stored, box: Box) -> Array | None:
        """The picture down to where the box ends; None where that saves nothing or goes wrong: decode it whole then."""
        row, bottom = stored.row, box.top + box.height
        if row.height - bottom < WORTH_ROWS or row.height * row.width * 3 > KEPT_BYTES:
            return None
        short = shortened(stored.picture, (row.height, row.width), bottom)
        if short is None:
            return None
        size = short[1], row.width
        try:
            return self._jpeg(short[0], size)
        except ValueError as error:  # pixels are in memory when libjpeg finds what is left over
            done: Array = self._memory()[: size[0] * size[1] * 3].reshape(*size, 3)
            return done if LEFT_OVER in str(error) else None

    def _memory(self) -> Any:
        """Memory that stays mapped: fresh pages for each picture cost a tenth of its decoding.

        It begins at an odd address. Rows of pixels that begin at a multiple of 16 or 32 bytes libjpeg-turbo stores past
        the caches (movntdq in its jdcolext), and what is to be resized next would have to come back from main memory.
        """
        if not hasattr(self._own, "memory"):
            self._own.memory = np.empty(1 + KEPT_BYTES, np.uint8)[1:]  # allocators give even addresses
        return self._own.memory


def _raw(stored: Stored, box: Box) -> Array:
    row, top = stored.row, box.top - stored.first
    pixels: Array = np.frombuffer(stored.whole, stored.dtype).reshape(-1, row.width, row.channels)
    return pixels[top : top + box.height, box.left : box.left + box.width]


def _cut(pixels: Array, box: Box) -> Array:
    part: Array = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    if part.shape[:2] != (box.height, box.width):
        raise Refused("another size than the index says")
    return part


def form(directory: Path, header: Header, rows: Rows) -> tuple[int, str]:
    """Channels and type of what the records of a pack become.

    Raises:
        BadInput: not all become the same.
    """
    raw = rows["codec"] == RAW
    if not raw.any():
        return 3, "|u1"
    channels = np.unique(rows["channels"][raw])
    if len(channels) > 1 or not raw.all():
        raise BadInput(f"{directory}: records of several numbers of channels", hint="pack them separately")
    return int(channels[0]), header.dtype


JOB_RECORDS = 16  # smaller jobs share the work better among threads, larger ones cost less and read longer
JOB_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class Wanted:
    """One sample: ``record`` and that one's ``row`` of the index, its view, and its place in the batch's ``slot``."""

    record: int
    row: Row
    view: View
    slot: int


@dataclass(frozen=True, slots=True)
class Job:
    """Samples of one batch, in the order of the pack."""

    epoch: int
    samples: list[Wanted]


def jobs(pack: Pack, epoch: int, records: Indices, seen: Sequence[View]) -> list[Job]:
    """The jobs of a batch of ``records`` [n], each with its view; sorted as in the pack, so that neighbours meet."""
    order = np.argsort(records, kind="stable")
    ascending = records[order]
    rows = map(Row._make, pack.rows[ascending].tolist())
    made: list[Job] = []
    room = 0
    for slot, record, row in zip(order.tolist(), ascending.tolist(), rows, strict=True):
        if not made or len(made[-1].samples) >= JOB_RECORDS or row.length > room:
            made.append(Job(epoch, []))
            room = JOB_BYTES
        made[-1].samples.append(Wanted(record, row, seen[slot], slot))
        room -= row.length
    return made


def read(pack: Pack, samples: Sequence[Wanted], memory: memoryview) -> Iterator[Stored]:
    """The records of ``samples``, each valid until the next but one is asked for: neighbours by one read.

    Of raw pixels that stand alone, only the rows that the view shows are read; ``memory`` takes what fits.
    """
    dtype = np.dtype(pack.header.dtype)
    for run in _runs(samples):
        first, last = run[0].row, run[-1].row
        if len(run) == 1 and first.codec == RAW:
            box, line = run[0].view.box, first.length // first.height
            part = pack.stretch(first.shard, first.offset + box.top * line, box.height * line, memory)
            yield Stored(first, part, dtype, box.top)
            continue
        block = memoryview(pack.stretch(first.shard, first.offset, last.offset + last.length - first.offset, memory))
        for one in run:
            begin = one.row.offset - first.offset
            yield Stored(one.row, block[begin : begin + one.row.length], dtype)


def _runs(samples: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """Ascending samples, cut where the next is not the neighbour in the same file."""
    start = 0
    for at in range(1, len(samples) + 1):
        if at < len(samples):
            before, after = samples[at - 1], samples[at]
            if after.record == before.record + 1 and after.row.shard == before.row.shard:
                continue
        yield samples[start:at]
        start = at
