"""Verify every byte of a pack, and name each fault: flipped bits, truncated shards, shards of another pack."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from allpull.data.jpeg.header import NotJpeg, parse_jpeg
from allpull.data.jpeg.restart import parse_segments
from allpull.data.pack.read import read_index
from allpull.data.pack_format import (
    INDEX,
    JPEG,
    JPEG_SEGMENTS,
    LISTS,
    NAMES,
    ODD,
    SHARD_HEAD_BYTES,
    SKIPPED,
    Header,
    PackError,
    Rows,
    aligned,
    shard_head,
    shard_name,
)
from allpull.data.regular_files import open_regular

MAX_LINE_BYTES = 1 << 20  # of a list: a name and a reason, both far shorter
MAX_FAULTS = 1000  # listed; further ones are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was verified, the number of faulty records and files, and messages of the first."""

    records: int
    bytes: int
    faults: int
    listed: tuple[str, ...]


def verify(directory: Path, *, threads: int = 1, progress: Callable[[int, int], None] | None = None) -> Verified:
    """Compare every record with its checksum and its row, and the folder with the index.

    Raises:
        PackError: the index itself is missing or damaged.
    """
    header, rows, _ = read_index(directory)
    faults = [f"{name}: not in the index" for name in _unexpected(directory, header)]
    begins = [0]
    for shard in header.shards:
        begins.append(begins[-1] + shard.records)
    work = [
        (directory, header, number, rows[begins[number] : begins[number + 1]], begins[number])
        for number in range(len(header.shards))
    ]
    count = len(faults)
    with ThreadPoolExecutor(max(1, threads)) as pool:  # checksums release the GIL
        for number, shard_faults in enumerate(pool.map(lambda job: list(_shard(*job)), work), start=1):
            count += len(shard_faults)
            faults += shard_faults[: MAX_FAULTS - len(faults)]
            if progress is not None:
                progress(number, len(work))
    lists = [fault for name in LISTS if (fault := _list(directory, name, header))]
    faults += lists
    size = sum(shard.bytes for shard in header.shards)
    return Verified(records=header.records, bytes=size, faults=count + len(lists), listed=tuple(faults))


def _unexpected(directory: Path, header: Header) -> list[str]:
    known = {INDEX, *LISTS, *map(shard_name, range(len(header.shards)))}
    return sorted({path.name for path in directory.iterdir()} - known)


def _shard(directory: Path, header: Header, number: int, rows: Rows, first: int) -> Iterator[str]:
    name = shard_name(number)
    try:
        descriptor = open_regular(directory / name)
    except PackError as error:
        yield f"{name}: {error}"
        return
    with os.fdopen(descriptor, "rb") as file:
        size, wanted = os.fstat(descriptor).st_size, header.shards[number].bytes
        if size != wanted:
            yield f"{name}: {size} bytes, the index says {wanted}"
        if file.read(SHARD_HEAD_BYTES) != shard_head(header.pack, number):
            yield f"{name}: a shard of another pack"
            return
        at = SHARD_HEAD_BYTES
        for index, row in enumerate(rows, start=first):
            gap, data = file.read(int(row["offset"]) - at), file.read(int(row["length"]))
            at = int(row["offset"]) + int(row["length"])
            fault = _record(data, row)
            if fault or any(gap) or len(gap) >= aligned(1):
                yield f"{name}: record {index}: {fault or 'unexpected bytes before it'}"


def _record(data: bytes, row: Rows) -> str:
    if len(data) != row["length"]:
        return "truncated"
    if zlib.crc32(data) != row["crc32"]:
        return "wrong checksum"
    if row["codec"] not in (JPEG, JPEG_SEGMENTS):
        return ""
    picture = len(data) - int(row["tail"])
    try:
        header = parse_jpeg(data[:picture])
        if row["codec"] == JPEG_SEGMENTS:
            parse_segments(data[picture:], picture)
    except (NotJpeg, PackError) as error:
        return str(error)
    same = header.height == int(row["height"]) and header.width == int(row["width"])
    return "" if same else "its size contradicts the index"


def _list(directory: Path, name: str, header: Header) -> str:
    """The fault of one list of the pack, or ""; of a pack that has no checksums of them, names are counted.

    Reading ends where the file cannot be right any more: with too many lines, or one that does not end.
    """
    wanted = header.lists.get(name)
    if wanted is None and name != NAMES:
        return ""
    listed = {NAMES: header.records, SKIPPED: header.skipped, ODD: sum(header.remarks.values())}[name]
    lines = checksum = 0
    try:
        with os.fdopen(open_regular(directory / name), "rb") as file:
            while block := file.read(MAX_LINE_BYTES):
                ends = block.count(b"\n")
                lines += ends
                checksum = zlib.crc32(block, checksum)
                if lines > listed or not ends:
                    break
    except PackError as error:
        return f"{name}: {error}"
    if name == NAMES and lines != listed:
        return f"{name}: {lines} names for {listed} records"
    return f"{name}: wrong checksum" if wanted not in (None, checksum) else ""
