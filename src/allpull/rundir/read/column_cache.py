"""Cache the columns of a run's step records and counters in ``derived``; if any file differs, all are read again.

The cache holds for files of the same size, times, and inode as those that it was made from. It is one file, private to
its owner, and safe to delete. A folder that somebody else owns or may write to is not used: whoever can place a cache
there could change results.
"""

from __future__ import annotations

import io
import os
import stat
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from allpull.rundir import layout
from allpull.rundir.read import counters, steps
from allpull.rundir.read.counters import CountersFile
from allpull.rundir.read.steps import StepsFile, StepTables
from allpull.rundir.safe_open import Identity, file_identity, others_can_write
from allpull.rundir.write import private_folder, replaced_file
from allpull.schema.base import Record
from allpull.schema.counters import CountersHeader
from allpull.schema.steps import StepsHeader
from allpull.version import __version__

FORMAT = 4
"""Raised whenever reading gives other columns for the same files."""

MIN_BYTES = 8 << 20  # of step records; fewer are parsed as fast as the cache is opened
SETTLED_NS = 2_000_000_000  # a file that changed later than this before it was read may change again unnoticed
MAX_INDEX_BYTES = 1 << 28
MAX_OFFSET = 1 << 62  # of a byte of the cache: further than any file system has
MAGIC = b"allpull columns\n"
NUMBER_BYTES = 8  # of each number after it: where the index is, how long, and its checksum
HEAD_BYTES = len(MAGIC) + 3 * NUMBER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What reading the step records and counters of a run gives."""

    files: dict[int, StepsFile]
    tables: StepTables
    hosts: list[CountersFile]
    samples: dict[str, pl.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The files that a cache is made from, as they were before they were read."""

    root: Path
    ranks: int
    identities: dict[str, Identity]
    read_ns: int


class _StepsEntry(Record):
    header: StepsHeader
    records: int
    first: int | None
    last: int | None
    cut_off: bool


class _CountersEntry(Record):
    header: CountersHeader
    cut_off: bool
    ended: bool


class _Table(Record):
    offset: int
    size: int
    checksum: int


class _Index(Record):
    made_by: list[str | int]
    ranks: int
    sources: dict[str, list[int]]
    steps: list[_StepsEntry]
    counters: list[_CountersEntry]
    tables: dict[str, _Table]


_SCHEMAS = {**steps.SCHEMAS, **counters.SCHEMAS}
_MADE_BY = [FORMAT, __version__, pl.__version__]


def sources(root: Path, relatives: Sequence[str], ranks: int) -> Sources | None:
    """The files ``relatives`` of a run of ``ranks`` ranks in the resolved directory ``root``.

    None: they are too small to be worth a cache, one is a link or not a file, or the directory is not private.
    """
    read_ns = time.time_ns()
    try:
        if others_can_write(root.stat()):
            return None
        identities = {relative: file_identity(root, relative) for relative in relatives}
    except (OSError, ValueError):
        return None
    if sum(size for _, _, size, _, _ in identities.values()) < MIN_BYTES:
        return None
    return Sources(root=root, ranks=ranks, identities=identities, read_ns=read_ns)


def load(of: Sources) -> Columns | None:
    """What was cached of ``of``; None where nothing was, or it does not match, or it is damaged."""
    try:
        with _opened(of.root) as file:
            index = _index(file)
            if index is None or not _matches(index, of):
                return None
            frames = {name: _frame(file, index.tables[name], name) for name in _SCHEMAS}
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    if frames["steps"].height != sum(entry.records for entry in index.steps):
        return None
    return Columns(
        files={
            entry.header.rank: StepsFile(
                header=entry.header,
                records=entry.records,
                first=entry.first,
                last=entry.last,
                cut_off=entry.cut_off,
                damaged=0,
            )
            for entry in index.steps
        },
        tables=StepTables(**{name: frames[name] for name in steps.SCHEMAS}),
        hosts=[
            CountersFile(header=entry.header, cut_off=entry.cut_off, damaged=0, ended=entry.ended)
            for entry in index.counters
        ],
        samples={name: frames[name] for name in counters.SCHEMAS},
    )


def store(of: Sources, columns: Columns) -> None:
    """Cache ``columns``, if they are whole, ``of`` has not changed meanwhile, and its directory can be written."""
    damaged = sum(file.damaged for file in columns.files.values()) + sum(host.damaged for host in columns.hosts)
    newest_ns = max(max(identity[3:]) for identity in of.identities.values())
    if damaged or newest_ns > of.read_ns - SETTLED_NS:
        return
    folder = of.root / layout.DERIVED
    try:
        if any(file_identity(of.root, relative) != identity for relative, identity in of.identities.items()):
            return
        private_folder(str(folder))
        status = os.lstat(folder)
        if others_can_write(status) or not stat.S_ISDIR(status.st_mode):
            return
        _write(of, columns, str(of.root / layout.COLUMNS))
    except (OSError, ValueError):
        return


class _Summed:
    """What is appended to a file, and its checksum: a table is in memory only once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.offset = file, file.tell()
        self.size = self.checksum = 0

    def write(self, part: bytes) -> int:
        """Append ``part``."""
        self.size += len(part)
        self.checksum = zlib.crc32(part, self.checksum)
        return self.file.write(part)

    def flush(self) -> None:
        """Do what polars asks of a file."""
        self.file.flush()


def _write(of: Sources, columns: Columns, path: str) -> None:
    frames = {**{name: getattr(columns.tables, name) for name in steps.SCHEMAS}, **columns.samples}
    index: dict[str, Any] = {
        "made_by": _MADE_BY,
        "ranks": of.ranks,
        "sources": of.identities,
        "steps": [
            {
                "header": file.header.model_dump(by_alias=True),
                "records": file.records,
                "first": file.first,
                "last": file.last,
                "cut_off": file.cut_off,
            }
            for file in columns.files.values()
        ],
        "counters": [
            {"header": file.header.model_dump(by_alias=True), "cut_off": file.cut_off, "ended": file.ended}
            for file in columns.hosts
        ],
        "tables": {},
    }
    with replaced_file(path) as file:
        file.seek(HEAD_BYTES)
        for name, frame in frames.items():
            table = _Summed(file)
            frame.write_ipc(table, compression="lz4")
            index["tables"][name] = {"offset": table.offset, "size": table.size, "checksum": table.checksum}
        text = to_json(index)
        head = (file.tell(), len(text), zlib.crc32(text))
        file.write(text)
        file.seek(0)
        file.write(MAGIC + b"".join(number.to_bytes(NUMBER_BYTES, "little") for number in head))


def _index(file: BinaryIO) -> _Index | None:
    head = file.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    offset, length, checksum = (
        int.from_bytes(head[at : at + NUMBER_BYTES], "little") for at in range(len(MAGIC), HEAD_BYTES, NUMBER_BYTES)
    )
    if length > MAX_INDEX_BYTES or offset >= MAX_OFFSET:
        return None
    file.seek(offset)
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != checksum:
        return None
    value: Any = from_json(text)
    if not isinstance(value, dict) or value.get("made_by") != _MADE_BY:  # another version may have other fields
        return None
    try:
        return _Index.model_validate(value, strict=True)
    except ValidationError:
        return None


def _matches(index: _Index, of: Sources) -> bool:
    recorded = {relative: tuple(identity) for relative, identity in index.sources.items()}
    return index.ranks == of.ranks and recorded == of.identities


def _frame(file: BinaryIO, table: _Table, name: str) -> pl.DataFrame:
    """Raises ValueError where the table is damaged or has other columns."""
    file.seek(table.offset)
    blob = file.read(table.size)
    if len(blob) != table.size or zlib.crc32(blob) != table.checksum:
        raise ValueError(f"{name} is damaged")
    frame = pl.read_ipc(io.BytesIO(blob))
    if dict(frame.schema) != _SCHEMAS[name]:
        raise ValueError(f"{name} has other columns")
    return frame


def _opened(root: Path) -> BinaryIO:
    """The cache file, opened through no link.

    Raises:
        OSError: there is none.
        ValueError: it is not a private file in a private folder.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(root / layout.DERIVED, flags | os.O_DIRECTORY)
    try:
        name = Path(layout.COLUMNS).name
        descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)  # opening a pipe must not hang
        status = os.fstat(descriptor)
        if others_can_write(os.fstat(folder)) or others_can_write(status) or not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise ValueError(f"{layout.COLUMNS} is not a private file")
        return os.fdopen(descriptor, "rb")
    finally:
        os.close(folder)
