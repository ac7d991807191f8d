"""The pack format: append-only shards, and one index that locates and describes each record.

    DIR/index.bin          16 bytes  magic "allpull1", bytes of the header (u32), CRC-32 of all that follows (u32)
                           header    JSON, padded with spaces to a multiple of 8: kind, classes, shards, origin
                           rows      RECORD × records, sorted by (shard, offset)
                           labels    multi-label packs: one bit per class, ⌈classes/8⌉ bytes × records
    DIR/shard-00000.pack   64 bytes  magic "allpull1", the pack's id (32 hex digits), the shard's number, zeros
                           records   one after the other, each at a multiple of 8, zero-padded
    DIR/names.txt          one line per record: its source; read only on request
    DIR/skipped.txt        one line per sample that is not in the pack, and why
    DIR/odd.txt            one line per unusual sample in the pack, and how it was treated

All numbers are little-endian. A record is an unchanged image file (JPEG, or a format of Pillow's), or pixels [height,
width, channels] of the pack's dtype. One of codec ``JPEG_SEGMENTS`` ends in a table of its restart segments of ``tail``
bytes, which decoders ignore and ``allpull.data.jpeg.crop`` reads. The table is in the record because in the index it
would be twenty times the rest: 0.8 kB per image, a gigabyte of each rank's memory for ImageNet.

A pack is complete when it has an index: that file is renamed into place last. The id is a hash of the pack's inputs
(keys, sizes, options), so that an index never reads another pack's shards.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput

INDEX, NAMES, SKIPPED, ODD = "index.bin", "names.txt", "skipped.txt", "odd.txt"
LISTS = (NAMES, SKIPPED, ODD)
JOURNAL = "journal.jsonl"  # of an unfinished pack
MAGIC = b"allpull1"
HEAD_BYTES = 16
SHARD_HEAD_BYTES = 64
ALIGN_BYTES = 8  # of a record's offset, so that 2- and 4-byte pixels can be read in place

MAX_HEADER_BYTES = 1 << 26  # a million class names
MAX_RECORDS = 1 << 27  # a hundred ImageNets
MAX_SHARDS = 1 << 16
MAX_CLASSES = 1 << 20
MAX_RECORD_BYTES = 1 << 30
MAX_SIDE = 65535  # limit of JPEG
MAX_CHANNELS = 4096
MAX_LABEL_BYTES = 1 << 34  # of a multi-label pack's bits

JPEG, JPEG_SEGMENTS, PICTURE, RAW = range(4)
"""Codecs: a JPEG for fast decoders, one with a table of segments, an image for Pillow only, pixels."""

Kind = Literal["jpeg", "jpeg-restart", "jpeg-side", "raw"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DTYPES = ("|u1", "<u2", "<f4")

RECORD = np.dtype(
    [
        *(("offset", "<u8"), ("length", "<u4"), ("tail", "<u4"), ("crc32", "<u4"), ("shard", "<u4")),
        *(("label", "<i4"), ("height", "<u4"), ("width", "<u4"), ("channels", "<u2"), ("codec", "u1"), ("spare", "u1")),
    ]
)
"""A row of the index, 40 bytes. ``length`` includes ``tail``; ``label`` is −1 with none or several labels."""


class Row(NamedTuple):
    """A row of the index in Python numbers: ``Row(*rows[index].tolist())``; fields as in ``RECORD``."""

    offset: int
    length: int
    tail: int
    crc32: int
    shard: int
    label: int
    height: int
    width: int
    channels: int
    codec: int
    spare: int


Rows = npt.NDArray[np.void]
Bits = npt.NDArray[np.uint8]
Buffer = memoryview | bytes


class PackError(BadInput):
    """A pack is missing, damaged, or contradicts its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of records: its size, header included, and its number of records."""

    bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The description of a pack, apart from its rows.

    ``dtype`` is that of raw pixels; ``origin`` says how the pack was made (source, options, libraries); ``remarks``
    counts unusual samples by their treatment; ``skipped`` samples have no record. ``mean`` and ``std`` per channel are
    in units of the stored numbers; empty if undefined, or in packs of older versions. ``lists`` has the CRC-32 of each
    list (``LISTS``) by its name; empty in packs of older versions.
    """

    pack: str
    kind: Kind
    records: int
    classes: tuple[str, ...]
    multi_label: bool
    dtype: str
    shards: tuple[Shard, ...]
    skipped: int
    remarks: dict[str, int]
    origin: dict[str, Any]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    lists: dict[str, int] = field(default_factory=dict)

    @property
    def label_bytes(self) -> int:
        """Bytes of one record's label bits; 0 for packs with one label a record."""
        return -(-len(self.classes) // 8) if self.multi_label else 0


def shard_name(number: int) -> str:
    """The file name of a shard.

    >>> shard_name(3)
    'shard-00003.pack'
    """
    return f"shard-{number:05d}.pack"


def shard_head(pack: str, number: int) -> bytes:
    """The header of a shard: the pack it belongs to, and its number."""
    return (MAGIC + pack.encode("ascii") + number.to_bytes(4, "little")).ljust(SHARD_HEAD_BYTES, b"\0")


def aligned(offset: int) -> int:
    """The next aligned offset, at or after ``offset``.

    >>> aligned(64), aligned(65)
    (64, 72)
    """
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES


def index_bytes(header: Header, rows: Rows, bits: Bits) -> bytes:
    """The index file: ``rows`` [records] of RECORD and ``bits`` [records, label bytes]."""
    text = json.dumps(asdict(header), ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8")
    text = text.ljust(aligned(len(text)), b" ")
    body = text + rows.tobytes() + bits.tobytes()
    return MAGIC + len(text).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def header_length(head: bytes, where: str) -> int:
    """Bytes of the JSON header, from the first bytes of an index.

    Raises:
        PackError: it is not an index, or its header is too large.
    """
    if len(head) != HEAD_BYTES or head[:8] != MAGIC:
        raise PackError(f"{where}: not the index of a pack", hint="make one with: allpull pack SRC DST")
    length = int.from_bytes(head[8:12], "little")
    if length > MAX_HEADER_BYTES or length % ALIGN_BYTES:
        raise PackError(f"{where}: claims a header of {length} bytes", hint=COPY_AGAIN)
    return length


def parse_header(text: bytes, where: str) -> Header:
    """The header in ``text``, with types and bounds of all fields checked.

    Raises:
        PackError: it is invalid.
    """
    try:
        value = json.loads(text)
        header = Header(
            pack=_text(value["pack"], 32),
            kind=value["kind"],
            records=_count(value["records"], MAX_RECORDS),
            classes=tuple(_text(name, 4096) for name in _sequence(value["classes"], MAX_CLASSES)),
            multi_label=value["multi_label"] is True,
            dtype=value["dtype"],
            shards=tuple(
                Shard(bytes=_count(one["bytes"], 1 << 62), records=_count(one["records"], MAX_RECORDS))
                for one in _sequence(value["shards"], MAX_SHARDS)
            ),
            skipped=_count(value["skipped"], 1 << 40),
            remarks={_text(key, 4096): _count(count, 1 << 40) for key, count in dict(value["remarks"]).items()},
            origin=dict(value["origin"]),
            mean=tuple(_finite(one) for one in _sequence(value.get("mean", []), MAX_CHANNELS)),
            std=tuple(_finite(one) for one in _sequence(value.get("std", []), MAX_CHANNELS)),
            lists={name: _count(value["lists"][name], 1 << 32) for name in LISTS if name in value.get("lists", {})},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackError(f"{where}: its header is damaged: {str(error)[:200]}", hint=COPY_AGAIN) from error
    if header.kind not in KINDS or header.dtype not in DTYPES:
        raise PackError(f"{where}: an unknown kind of pack", hint="was it made by a newer version of allpull?")
    if len(header.mean) != len(header.std) or not all(one > 0 for one in header.std):
        raise PackError(f"{where}: its mean and standard deviation contradict each other", hint=COPY_AGAIN)
    if sum(shard.records for shard in header.shards) != header.records:
        raise PackError(f"{where}: its shards do not add up to its number of records", hint=COPY_AGAIN)
    return header


def index_size(header: Header, header_bytes: int) -> int:
    """The size in bytes of an index with this header.

    Raises:
        PackError: it exceeds the limit.
    """
    if header.records * header.label_bytes > MAX_LABEL_BYTES:
        raise PackError(f"{header.records} records of {len(header.classes)} labels", hint=COPY_AGAIN)
    return HEAD_BYTES + header_bytes + header.records * (RECORD.itemsize + header.label_bytes)


def check_rows(rows: Rows, header: Header, where: str) -> None:
    """Check that each row is within its shard, in order, does not overlap, and has a size that matches its bytes.

    Raises:
        PackError: one does not; the first is named.
    """
    sizes = np.array([shard.bytes for shard in header.shards], np.uint64)
    counts = [shard.records for shard in header.shards]
    bad = rows["shard"] != np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
    _refuse(bad, "is in the wrong shard", where)
    offset, length = rows["offset"], rows["length"].astype(np.uint64)
    end = sizes[rows["shard"]]
    _refuse((offset > end) | (length > end - np.minimum(offset, end)), "lies outside its shard", where)
    _refuse((offset < SHARD_HEAD_BYTES) | (offset % ALIGN_BYTES != 0), "has an invalid offset", where)
    same = rows["shard"][1:] == rows["shard"][:-1]
    _refuse(same & (offset[1:] < offset[:-1] + length[:-1]), "overlaps the next", where)
    sides = (rows["height"] < 1) | (rows["width"] < 1) | (rows["height"] > MAX_SIDE) | (rows["width"] > MAX_SIDE)
    sides |= (rows["channels"] < 1) | (rows["channels"] > MAX_CHANNELS)
    _refuse(sides | (length > MAX_RECORD_BYTES), "has an impossible size", where)
    _refuse((rows["tail"] > rows["length"]) | (rows["codec"] > RAW), "has an unknown codec", where)
    pixels = rows["height"].astype(np.uint64) * rows["width"] * rows["channels"] * np.dtype(header.dtype).itemsize
    _refuse((rows["codec"] == RAW) & (pixels != length), "has a length that contradicts its pixels", where)
    highest = max(len(header.classes), 1) if header.classes else 1 << 31
    _refuse((rows["label"] < -1) | (rows["label"] >= highest), "has a label that is not a class", where)


def _refuse(bad: npt.NDArray[np.bool_], fault: str, where: str) -> None:
    if bad.any():
        raise PackError(f"{where}: record {int(np.argmax(bad))} {fault}", hint=COPY_AGAIN)


def _count(value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"not a count up to {limit}")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _text(value: object, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError("not a short text")
    return value


def _sequence(value: object, limit: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > limit:
        raise ValueError("not a list, or too long a one")
    return value


COPY_AGAIN = "the pack is damaged: copy it again, or recreate it with allpull pack"
