"""The journal of an unfinished pack: one line per sample, so that a killed writer can resume.

The first line names the plan. Data are flushed to the system before their line, so after a kill every line is valid;
after a power failure the checksums of the last shard decide which lines are.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from allpull.data.pack_format import JOURNAL, RECORD, SHARD_HEAD_BYTES, Rows, Shard, aligned, shard_head, shard_name
from allpull.errors import BadInput
from allpull.rundir.write import no_follow

FIELDS = ("offset", "length", "tail", "crc32", "shard", "height", "width", "channels", "codec")


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The records written so far: ``rows`` [samples], the first ``records`` of them filled, and their samples."""

    rows: Rows
    sample: np.ndarray[tuple[int], np.dtype[np.int64]]
    records: int = 0
    samples: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)
    unusual: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def of(cls, samples: int) -> Ledger:
        """An empty ledger for a source of ``samples``."""
        return cls(rows=np.zeros(samples, RECORD), sample=np.zeros(samples, np.int64))

    def add(self, line: list[int | str]) -> None:
        """Add one line of the journal."""
        if len(line) == 1:
            self.skipped.append((self.samples, str(line[0])))
        else:
            row = self.rows[self.records]
            for name, value in zip(FIELDS, line[:-1], strict=True):
                row[name] = value
            self.sample[self.records] = self.samples
            self.records += 1
            if line[-1]:
                self.unusual.append((self.samples, str(line[-1])))
        self.samples += 1

    def end(self) -> tuple[int, int]:
        """Shard and offset of the end of the last record; −1 and 0 if there is none."""
        if not self.records:
            return -1, 0
        last = self.rows[self.records - 1]
        return int(last["shard"]), int(last["offset"]) + int(last["length"])

    def shards(self) -> tuple[Shard, ...]:
        """The shards of the records."""
        rows = self.rows[: self.records]
        counts = np.bincount(rows["shard"]).tolist()
        last = np.cumsum(counts) - 1
        ends = (rows["offset"][last] + rows["length"][last].astype(np.uint64)).tolist()
        return tuple(Shard(bytes=end, records=count) for end, count in zip(ends, counts, strict=True))


class Journal:
    """The journal of one destination, locked against a second writer, and the current shard."""

    def __init__(self, directory: Path, pack: str, samples: int) -> None:
        """Start a pack, or resume one of the same plan.

        Raises:
            BadInput: another process writes there, or an unfinished pack of another plan is there.
        """
        self.directory, self.pack = directory, pack
        self.ledger = Ledger.of(samples)
        self._shard: IO[bytes] | None = None
        self._file = open(directory / JOURNAL, "a+b", opener=no_follow)  # noqa: SIM115  until ``close``
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadInput(f"{directory}: another allpull pack is writing there", hint="wait for it") from error
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def _resume(self) -> None:
        self._file.seek(0)
        head = self._file.readline()
        if head and (not head.endswith(b"\n") or json.loads(head) != {"plan": self.pack}):
            hint = "choose another folder, or remove this one: its source or options differ"
            raise BadInput(f"{self.directory}: an unfinished pack of another plan", hint=hint)
        lines = list(_whole_lines(self._file, self.ledger.samples + len(self.ledger.rows)))
        valid = self._valid_lines(lines)
        for line, _ in lines[:valid]:
            self.ledger.add(line)
        end = lines[valid - 1][1] if valid else len(head)
        self._file.truncate(end)
        self._file.seek(end)
        if not head:
            self._file.write(json.dumps({"plan": self.pack}).encode("ascii") + b"\n")
            self._file.flush()
        self._reopen_shard()

    def _valid_lines(self, lines: list[tuple[list[int | str], int]]) -> int:
        """The number of valid lines: in the last shard, which was not synced yet, up to the first wrong checksum."""
        last = max((int(line[4]) for line, _ in lines if len(line) > 1), default=-1)
        if last < 0:
            return len(lines)
        try:
            descriptor = os.open(self.directory / shard_name(last), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return next(number for number, (line, _) in enumerate(lines) if len(line) > 1 and line[4] == last)
        with os.fdopen(descriptor, "rb") as file:
            for number, (line, _) in enumerate(lines):
                if len(line) > 1 and line[4] == last:
                    data = os.pread(file.fileno(), int(line[1]), int(line[0]))
                    if len(data) != line[1] or zlib.crc32(data) != line[3]:
                        return number
        return len(lines)

    def _reopen_shard(self) -> None:
        number, end = self.ledger.end()
        for path in self.directory.glob(shard_name(0).replace("00000", "*")):
            if path.name > shard_name(number) or number < 0:
                path.unlink()  # no record of it is in the journal
        if number >= 0:
            self._shard = self._open_shard(number, "r+b")
            self._shard.truncate(end)
            self._shard.seek(end)

    def _open_shard(self, number: int, mode: str) -> IO[bytes]:
        return open(self.directory / shard_name(number), mode, opener=no_follow)

    def append(self, data: bytes, fields: tuple[int, int, int, int, int], remark: str, shard_bytes: int) -> None:
        """Write a record: its bytes, (tail, height, width, channels, codec), and a remark or ""."""
        number, end = self.ledger.end()
        offset = aligned(end)
        if self._shard is None or offset + len(data) > shard_bytes:
            number, offset = number + 1, SHARD_HEAD_BYTES
            self._close_shard()
            self._shard = self._open_shard(number, "wb")
            self._shard.write(shard_head(self.pack, number))
        else:
            self._shard.write(bytes(offset - end))
        self._shard.write(data)
        tail, *shape = fields
        self._append_line([offset, len(data), tail, zlib.crc32(data), number, *shape, remark])

    def skip(self, reason: str) -> None:
        """Record that the next sample is skipped, and why."""
        self._append_line([reason])

    def _append_line(self, line: list[int | str]) -> None:
        self.ledger.add(line)
        self._file.write(json.dumps(line).encode("ascii") + b"\n")

    def flush(self) -> None:
        """Flush to the system: data first, then their lines."""
        if self._shard is not None:
            self._shard.flush()
        self._file.flush()

    def _close_shard(self) -> None:
        if self._shard is not None:
            self.flush()
            os.fsync(self._shard.fileno())
            self._shard.close()

    def close(self) -> None:
        """Sync and close."""
        self._close_shard()
        self._shard = None
        self._file.close()

    def remove(self) -> None:
        """Delete the journal of a complete pack."""
        (self.directory / JOURNAL).unlink()


def _whole_lines(file: IO[bytes], limit: int) -> Iterator[tuple[list[int | str], int]]:
    """The remaining lines, each with its end offset, up to the first incomplete one."""
    end = file.tell()
    for _ in range(limit):
        text = file.readline()
        end += len(text)
        try:
            line = json.loads(text) if text.endswith(b"\n") else None
        except ValueError:
            line = None
        if not isinstance(line, list) or len(line) not in (1, len(FIELDS) + 1):
            return
        yield line, end
