"""Write a pack from a source: encoded by several processes, resumable after a kill, completed atomically.

The bytes depend only on the source, the options and the versions of the libraries: the order is a seeded permutation of
the listing, shards are filled in that order, and only one process writes.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allpull.data.pack.encode_workers import CHUNK, Outcome, outcomes
from allpull.data.pack.journal import Journal, Ledger
from allpull.data.pack.plan import Plan
from allpull.data.pack.read import Index, Pack, read_index
from allpull.data.pack.statistics import statistics
from allpull.data.pack_format import (
    INDEX,
    JOURNAL,
    MAX_SHARDS,
    NAMES,
    ODD,
    SKIPPED,
    Bits,
    Header,
    PackError,
    index_bytes,
)
from allpull.data.sources import Entry
from allpull.errors import BadInput
from allpull.rundir.write import replaced_file

Progress = Callable[[int, int, int], None]
"""Called with samples done, total samples, and bytes written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A finished pack: the samples that existed before (``whole``: all), and the bytes and time of this call."""

    directory: Path
    header: Header
    resumed_from: int
    whole: bool = False
    bytes: int
    elapsed_s: float


def write_pack(plan: Plan, directory: Path, *, workers: int = 1, progress: Progress | None = None) -> Written:
    """Write the pack of ``plan`` into ``directory``, or the missing rest of it.

    Raises:
        BadInput: the folder holds something else, or no sample could be packed.
        AllpullError: a process died; written data stay, and the next call resumes.
    """
    begin_s = time.monotonic()
    done = finished(directory, plan)
    if done is not None:
        count = len(plan.entries)
        return Written(directory=directory, header=done, resumed_from=count, whole=True, bytes=0, elapsed_s=0.0)
    directory.mkdir(parents=True, exist_ok=True)
    journal = Journal(directory, plan.pack, len(plan.entries))
    resumed_from = journal.ledger.samples
    try:
        written = _write_records(plan, journal, workers, progress)
        header = _complete(plan, journal, workers)
    finally:
        journal.close()
    journal.remove()
    elapsed_s = time.monotonic() - begin_s
    return Written(directory=directory, header=header, resumed_from=resumed_from, bytes=written, elapsed_s=elapsed_s)


def finished(directory: Path, plan: Plan) -> Header | None:
    """The header of the pack of this plan, if it is complete already.

    Raises:
        BadInput: the folder holds another pack, or other things.
    """
    if (directory / INDEX).exists():
        header, _, _ = read_index(directory)
        if header.pack != plan.pack:
            hint = "choose another folder: existing packs are never changed"
            raise BadInput(f"{directory}: holds another pack", hint=hint)
        return header
    if directory.is_dir() and any(directory.iterdir()) and not (directory / JOURNAL).is_file():
        raise BadInput(f"{directory}: is not empty, and holds no unfinished pack", hint="choose an empty or new folder")
    return None


def _write_records(plan: Plan, journal: Journal, workers: int, progress: Progress | None) -> int:
    remaining = plan.entries[journal.ledger.samples :]
    written = 0
    for number, outcome in enumerate(outcomes(plan.listing.source, plan.recipe, remaining, workers), start=1):
        written += _write_one(journal, outcome, plan.layout.shard_bytes)
        if number % CHUNK == 0 or number == len(remaining):
            journal.flush()
            if progress is not None:
                progress(journal.ledger.samples, len(plan.entries), written)
    return written


def _write_one(journal: Journal, outcome: Outcome, shard_bytes: int) -> int:
    if isinstance(outcome, str):
        journal.skip(outcome)
        return 0
    fields = outcome.tail, outcome.height, outcome.width, outcome.channels, outcome.codec
    journal.append(outcome.data, fields, outcome.remark, shard_bytes)
    return len(outcome.data)


def _complete(plan: Plan, journal: Journal, workers: int) -> Header:
    """Write names, skipped samples, then the index: renaming it makes the folder a pack."""
    ledger = journal.ledger
    if not ledger.records:
        reasons = "; ".join(sorted({reason for _, reason in ledger.skipped})[:3])
        raise BadInput(f"none of {ledger.samples} samples could be packed: {reasons}", hint="is this the right source?")
    shards = ledger.shards()
    if len(shards) > MAX_SHARDS:
        raise PackError(f"{len(shards)} shards", hint="increase --shard-size")
    source, entries, directory = plan.listing.source, plan.entries, journal.directory
    skipped = [*plan.listing.left_out, *((entries[number].key, reason) for number, reason in ledger.skipped)]
    names = _write_lines(
        directory / NAMES, ((entries[number].key,) for number in ledger.sample[: ledger.records].tolist())
    )
    left_out = _write_lines(directory / SKIPPED, skipped)
    unusual = _write_lines(directory / ODD, ((entries[number].key, remark) for number, remark in ledger.unusual))
    header = Header(
        pack=plan.pack,
        kind=plan.recipe.kind,
        records=ledger.records,
        classes=tuple(one_line(name) for name in source.classes),
        multi_label=source.multi_label,
        dtype=plan.recipe.dtype,
        shards=shards,
        skipped=len(skipped),
        remarks=dict(sorted(Counter(remark for _, remark in ledger.unusual).items())),
        origin=plan.origin,
        lists={NAMES: names, SKIPPED: left_out, ODD: unusual},
    )
    bits = _labels(ledger, entries, header)
    journal.close()  # the last shard is on disk before the index refers to it
    rows = ledger.rows[: ledger.records]
    header = _with_statistics(directory, (header, rows, bits), workers)
    _write_atomically(directory / INDEX, index_bytes(header, rows, bits))
    return header


def _with_statistics(directory: Path, index: Index, threads: int) -> Header:
    """The header with mean and standard deviation, if all records have equally many channels of finite numbers."""
    header, rows, _ = index
    channels = np.unique(rows["channels"])
    if len(channels) > 1:
        return header
    with Pack(directory, index=index) as pack:
        try:
            values = statistics(pack, channels=int(channels[0]), threads=threads)
        except BadInput:
            return header  # training on it reports this
    return replace(header, mean=values.mean, std=values.std)


def _labels(ledger: Ledger, entries: Sequence[Entry], header: Header) -> Bits:
    """Set the rows' labels; for multi-label packs the bits [records, label bytes], class 0 lowest."""
    bits = np.zeros((ledger.records, header.label_bytes), np.uint8)
    for record, number in enumerate(ledger.sample[: ledger.records].tolist()):
        labels = entries[number].labels
        if header.multi_label:
            for label in labels:
                bits[record, label >> 3] |= 1 << (label & 7)
            ledger.rows["label"][record] = -1
        else:
            ledger.rows["label"][record] = labels[0] if labels else -1
    return bits


def one_line(name: str) -> str:
    """``name`` escaped to one line of valid UTF-8.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("\\", "\\\\").translate({ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"})


def _write_lines(path: Path, rows: Iterable[tuple[str, ...]]) -> int:
    """Write a list; returns its CRC-32."""
    content = "".join("\t".join(map(one_line, row)) + "\n" for row in rows).encode("utf-8")
    _write_atomically(path, content)
    return zlib.crc32(content)


def _write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically and synchronise it to disk."""
    with replaced_file(str(path)) as file:
        file.write(data)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # syncs the new name
    finally:
        os.close(folder)
