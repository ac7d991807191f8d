"""Read a pack: the index and each shard are opened once at the start, and ranks may open only their own shards.

``access="read"`` reads each record by one ``pread``: disk errors are reported with the file name, and threads share the
files. ``access="map"`` maps the shards into memory without further system calls; if a mapped shard is truncated the
process is killed, so it is for packs on local disks.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
import numpy.typing as npt

from allpull.data.jpeg.crop import Box, Cropped, crop
from allpull.data.pack_format import (
    COPY_AGAIN,
    HEAD_BYTES,
    INDEX,
    JOURNAL,
    JPEG_SEGMENTS,
    NAMES,
    RAW,
    RECORD,
    SHARD_HEAD_BYTES,
    Bits,
    Buffer,
    Header,
    PackError,
    Rows,
    check_rows,
    header_length,
    index_size,
    parse_header,
    shard_head,
    shard_name,
)
from allpull.data.regular_files import exactly, exactly_into, open_regular
from allpull.units import counted

Access = Literal["read", "map"]
Index = tuple[Header, Rows, Bits]
MAX_NAME_BYTES = 1 << 34


def read_index(directory: Path) -> Index:
    """Header, rows [records] and label bits [records, label bytes] of the pack in ``directory``; one open, checked.

    Raises:
        PackError: there is none, or it is damaged.
    """
    path = directory / INDEX
    if not path.is_symlink() and not path.exists():
        if (directory / JOURNAL).is_file():
            hint = "run the same command again: it resumes and keeps what is written"
            raise PackError(f"{directory}: an unfinished pack", hint=hint)
        raise PackError(f"{directory}: not a pack: it has no {INDEX}", hint="allpull pack SRC DST makes one")
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = exactly(file.fileno(), HEAD_BYTES, 0, path)
        text_bytes = header_length(head, str(path))
        text = exactly(file.fileno(), text_bytes, HEAD_BYTES, path)
        header = parse_header(text, str(path))
        if size != index_size(header, text_bytes):
            raise PackError(f"{path}: {size} bytes, which contradicts its header", hint=COPY_AGAIN)
        body = exactly(file.fileno(), size - HEAD_BYTES - text_bytes, HEAD_BYTES + text_bytes, path)
    if zlib.crc32(body, zlib.crc32(text)) != int.from_bytes(head[12:16], "little"):
        raise PackError(f"{path}: its checksum is wrong", hint=COPY_AGAIN)
    split = header.records * RECORD.itemsize
    rows: Rows = np.frombuffer(body, RECORD, header.records)
    check_rows(rows, header, str(path))
    bits = np.frombuffer(body, np.uint8, offset=split).reshape(header.records, header.label_bytes)
    return header, rows, bits


def digest(index: Index) -> str:
    """A hash over the checksums and labels of all records, which identifies records, labels and order."""
    _, rows, bits = index
    hasher = hashlib.blake2b(digest_size=8)
    for name in ("crc32", "label", "length"):
        hasher.update(np.ascontiguousarray(rows[name]).tobytes())
    hasher.update(bits.tobytes())
    return hasher.hexdigest()


class Pack:
    """An open pack. Any number of threads may read it; a copy sent to another process opens its own files.

    ``header`` describes it; ``rows`` [records] hold offsets, sizes and labels (``pack_format.RECORD``).
    """

    def __init__(
        self, directory: Path, *, access: Access = "read", shards: range | None = None, index: Index | None = None
    ) -> None:
        """Open the index and the shards; with ``shards``, only these are opened and readable.

        ``index``: the result of ``read_index``, if it was read already.

        Raises:
            PackError: something is missing, damaged, or of another pack.
        """
        self.directory, self.access, self._shards = directory, access, shards
        self.header, self.rows, self.bits = index or read_index(directory)
        self._files: dict[int, tuple[int, Path]] = {}
        self._maps: dict[int, memoryview] = {}
        self._intact = np.zeros(len(self.rows), np.bool_)  # records whose checksum this process has compared
        try:
            for number in range(len(self.header.shards)) if shards is None else shards:
                self._open_shard(number)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, directory: Path | str, *, access: Access = "read", shards: range | None = None) -> Pack:
        """The pack in ``directory``; see ``Pack``."""
        return cls(Path(directory), access=access, shards=shards)

    def _open_shard(self, number: int) -> None:
        path = self.directory / shard_name(number)
        descriptor = open_regular(path)
        self._files[number] = descriptor, path
        size, wanted = os.fstat(descriptor).st_size, self.header.shards[number].bytes
        if size != wanted:
            raise PackError(f"{path}: {size} bytes, the index says {wanted}", hint=COPY_AGAIN)
        if exactly(descriptor, SHARD_HEAD_BYTES, 0, path) != shard_head(self.header.pack, number):
            raise PackError(f"{path}: a shard of another pack", hint="were two packs copied into one folder?")
        if self.access == "map":
            self._maps[number] = memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))

    def __len__(self) -> int:
        return self.header.records

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.directory, self.access, self._shards)

    def close(self) -> None:
        """Close the files; views of mapped records stay valid."""
        self._maps.clear()
        while self._files:
            os.close(self._files.popitem()[1][0])

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The labels: [records], or [records, classes] of 0 and 1 in multi-label packs."""
        if self.header.multi_label:
            unpacked = np.unpackbits(self.bits, axis=1, count=len(self.header.classes), bitorder="little")
            return unpacked.astype(np.int64)
        return self.rows["label"].astype(np.int64)

    def record(self, index: int) -> Buffer:
        """The bytes of a record, without its table of segments: a JPEG, another image file, or pixels.

        Raises:
            PackError: the file could not be read.
        """
        whole = self.whole(index)
        tail = int(self.rows["tail"][index])
        return memoryview(whole)[:-tail] if tail else whole

    def whole(self, index: int) -> Buffer:
        """The bytes of a record with its table of segments, as ``allpull.data.jpeg.crop`` needs them.

        Raises:
            PackError: the file could not be read, or its shard was not opened.
        """
        return self.read_range(*self._place(index))

    def wholes(self, indices: range) -> list[Buffer]:
        """Consecutive records, as returned by ``whole``, with one read per shard."""
        records: list[Buffer] = []
        start = indices.start
        while start < indices.stop:
            shard, first, _ = self._place(start)
            stop = min(indices.stop, int(np.searchsorted(self.rows["shard"], shard, "right")))
            _, last, length = self._place(stop - 1)
            block = memoryview(self.read_range(shard, first, last + length - first))
            for index in range(start, stop):
                _, at, size = self._place(index)
                records.append(block[at - first : at - first + size])
            start = stop
        return records

    def read_range(self, shard: int, offset: int, length: int, memory: memoryview | None = None) -> Buffer:
        """``length`` bytes of a shard from ``offset`` on.

        They are read into ``memory`` if it is given and large enough and the files are not mapped: allocating memory
        for a large record costs more than reading it.

        Raises:
            PackError: the file could not be read, or was not opened.
        """
        mapped = self._maps.get(shard)
        if mapped is not None:
            return mapped[offset : offset + length]
        if shard not in self._files:
            raise PackError(f"{self.directory}: shard {shard} is not open here", hint="it belongs to other ranks")
        descriptor, path = self._files[shard]
        if memory is None or len(memory) < length:
            return exactly(descriptor, length, offset, path)
        return exactly_into(memory[:length], descriptor, offset, path)

    def pixels(self, index: int) -> npt.NDArray[np.generic]:
        """Raw pixels [height, width, channels]; read-only, and in place if mapped.

        Raises:
            PackError: the record is an image.
        """
        row = self.rows[index]
        if row["codec"] != RAW:
            raise PackError(f"{self.directory}: record {index} is an image, not pixels", hint="decode record()")
        shape = int(row["height"]), int(row["width"]), int(row["channels"])
        return np.frombuffer(self.whole(index), self.header.dtype).reshape(shape)

    def crop(self, index: int, box: Box) -> Cropped:
        """A small JPEG of the segments that cover ``box``, and the position of the box in it.

        Raises:
            PackError: the record has no segments (decode ``record``, then crop), or its table is damaged.
            ValueError: the box is empty or exceeds the image.
        """
        row = self.rows[index]
        if row["codec"] != JPEG_SEGMENTS:
            raise PackError(f"{self.directory}: record {index} has no segments", hint="decode record(), then crop")
        return crop(self.whole(index), int(row["tail"]), box)

    def check(self, index: int) -> bool:
        """Whether a record matches its CRC-32."""
        return zlib.crc32(self.whole(index)) == int(self.rows["crc32"][index])

    def was_checked(self, index: int) -> bool:
        """Whether ``intact`` has compared a record with its checksum here, and it was right."""
        return bool(self._intact[index])

    def intact(self, index: int, whole: Buffer) -> bool:
        """Whether ``whole``, as read, is record ``index`` as it was written; compared until it is right once."""
        if not self._intact[index]:
            self._intact[index] = zlib.crc32(whole) == int(self.rows["crc32"][index])
        return bool(self._intact[index])

    def split(self, rank: int, ranks: int) -> Split:
        """The whole shards of rank ``rank`` of ``ranks``, cut where records divide most evenly.

        As the Piz Daint study advises: a rank that reads only its own files relieves the file system. The pack's order
        then determines which samples share a batch, so it should be shuffled, which is the default.

        Raises:
            PackError: there are fewer shards than ranks.
        """
        return split_shards(self.header, rank, ranks)

    def names(self) -> list[str]:
        """The source of each record, read from a file that training does not need.

        Raises:
            PackError: the file is missing, or names another number of records.
        """
        path = self.directory / NAMES
        with os.fdopen(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_NAME_BYTES:
                raise PackError(f"{path}: too large for a list of names", hint=COPY_AGAIN)
            names = file.read().decode("utf-8", "backslashreplace").split("\n")[:-1]
        if len(names) != len(self):
            raise PackError(f"{path}: {len(names)} names for {len(self)} records", hint=COPY_AGAIN)
        return names

    def _place(self, index: int) -> tuple[int, int, int]:
        row = self.rows[index]
        return int(row["shard"]), int(row["offset"]), int(row["length"])


def _reopen(directory: Path, access: Access, shards: range | None) -> Pack:
    return Pack(directory, access=access, shards=shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The shards that one rank reads, and their records."""

    shards: range
    records: range


def split_shards(header: Header, rank: int, ranks: int) -> Split:
    """The whole shards of rank ``rank`` of ``ranks``, cut where records divide most evenly.

    Raises:
        PackError: there are fewer shards than ranks.
    """
    count = len(header.shards)
    if not 0 <= rank < ranks or count < ranks:
        raise PackError(
            f"{counted(count, 'shard')} cannot be split over {ranks} ranks",
            hint="recreate the pack with a smaller --shard-size",
        )
    begins = [0, *np.cumsum([shard.records for shard in header.shards]).tolist()]
    cuts = list(_cuts(begins, ranks))
    shards = range(cuts[rank], cuts[rank + 1])
    return Split(shards=shards, records=range(begins[shards.start], begins[shards.stop]))


def _cuts(begins: Sequence[int], ranks: int) -> Iterator[int]:
    """The first shard of each rank: nearest to an even split of records, at least one shard each."""
    shards, cut = len(begins) - 1, 0
    yield 0
    for rank in range(1, ranks):
        wanted = begins[-1] * rank / ranks
        allowed = range(cut + 1, shards - (ranks - rank) + 1)
        cut = min(allowed, key=lambda shard: abs(begins[shard] - wanted))
        yield cut
    yield shards
