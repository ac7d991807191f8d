"""One record of a pack into one slot: decoded as little as its view needs, cut, resized, mirrored and turned."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.errors import BadInput
from allpull.load.crop import Look, View
from allpull.load.resize import Array, Resizing, resize_middle, turn
from allpull.pack.crop import Box, crop
from allpull.pack.format import JPEG, JPEG_SEGMENTS, PICTURE, RAW, Buffer, Header, PackError, Rows
from allpull.pack.pixels import MAX_PIXELS, Refused, check_size, decode, import_simplejpeg
from allpull.pack.read import Pack

KEPT_BYTES = 1 << 23  # of each thread's own memory for decoding; larger pictures get theirs from the system


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A record as it was read: ``whole`` with its table of ``tail`` bytes, and what the index says of it."""

    whole: Buffer
    codec: int
    tail: int
    shape: tuple[int, int, int]
    dtype: str

    @classmethod
    def of(cls, pack: Pack, index: int, whole: Buffer) -> Stored:
        """Record ``index``, whose bytes are ``whole``."""
        row = pack.rows[index]
        shape = int(row["height"]), int(row["width"]), int(row["channels"])
        return cls(whole=whole, codec=int(row["codec"]), tail=int(row["tail"]), shape=shape, dtype=pack.header.dtype)

    @property
    def picture(self) -> Buffer:
        """The bytes without the table."""
        return memoryview(self.whole)[: len(self.whole) - self.tail]


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
        height, width, _ = stored.shape
        if stored.codec == RAW:
            whole: Array = np.frombuffer(stored.whole, stored.dtype).reshape(stored.shape)
            return _cut(whole, box), ""
        check_size(height, width, self.max_pixels)
        if stored.codec == JPEG_SEGMENTS and (box.height, box.width) != (height, width):
            try:
                part = crop(stored.whole, stored.tail, box)
                return _cut(self._jpeg(part.jpeg, None), part.box), ""
            except (PackError, ValueError, IndexError):
                odd = "damaged table of segments"  # the picture itself may be well
        else:
            odd = ""
        if stored.codec in (JPEG, JPEG_SEGMENTS):
            try:
                return _cut(self._jpeg(stored.picture, (height, width)), box), odd
            except ValueError:  # also what libjpeg only warns of
                pass
        pixels, found = decode(stored.picture, max_pixels=self.max_pixels)
        if pixels.shape[:2] != (height, width):
            raise Refused("another size than the index says")
        return _cut(pixels, box), found or odd if stored.codec == PICTURE else found or odd or "JPEG of another kind"

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

    def _memory(self) -> Any:
        """Memory that stays mapped: fresh pages for each picture cost a tenth of its decoding."""
        if not hasattr(self._own, "memory"):
            self._own.memory = np.empty(KEPT_BYTES, np.uint8)
        return self._own.memory


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
