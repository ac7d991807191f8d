"""Make a pack of a source: written by several processes, resumed after a kill, complete at once.

The bytes follow from the source, the options and the versions of the libraries alone: the order is a permutation of
the listing from a seed, shards are filled in that order, and only one process writes.
"""

from __future__ import annotations

import os
import time
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

Progress = Callable[[int, int, int], None]
"""Called with samples done, samples in all, and bytes written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A finished pack: samples, or the ``whole``, that were there already; bytes that this call wrote, and its time."""

    directory: Path
    header: Header
    resumed_from: int
    whole: bool = False
    bytes: int
    elapsed_s: float


def write_pack(plan: Plan, directory: Path, *, workers: int = 1, progress: Progress | None = None) -> Written:
    """Write the pack of ``plan`` into ``directory``, or what is still missing of it.

    Raises:
        BadInput: the folder holds something else, or no sample could be packed.
        AllpullError: a process died; what was written stays, and the next call goes on.
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
    """The header of the pack of this very plan, if it is there already.

    Raises:
        BadInput: the folder holds another pack, or other things.
    """
    if (directory / INDEX).exists():
        header, _, _ = read_index(directory)
        if header.pack != plan.pack:
            hint = "give another folder: packs are not changed"
            raise BadInput(f"{directory}: holds another pack", hint=hint)
        return header
    if directory.exists() and any(directory.iterdir()) and not (directory / JOURNAL).is_file():
        raise BadInput(f"{directory}: is not empty, and no pack was begun there", hint="give a folder of its own")
    return None


def _write_records(plan: Plan, journal: Journal, workers: int, progress: Progress | None) -> int:
    rest = plan.entries[journal.ledger.samples :]
    written = 0
    for number, outcome in enumerate(outcomes(plan.listing.source, plan.recipe, rest, workers), start=1):
        written += _write_one(journal, outcome, plan.layout.shard_bytes)
        if number % CHUNK == 0 or number == len(rest):
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
    """Names, skipped samples, then the index: with its renaming the folder becomes a pack."""
    ledger = journal.ledger
    if not ledger.records:
        reasons = "; ".join(sorted({reason for _, reason in ledger.skipped})[:3])
        raise BadInput(f"none of {ledger.samples} samples could be packed: {reasons}", hint="is it the right source?")
    shards = ledger.shards()
    if len(shards) > MAX_SHARDS:
        raise PackError(f"{len(shards)} shards", hint="--shard-size: make them larger")
    source, entries, directory = plan.listing.source, plan.entries, journal.directory
    skipped = [*plan.listing.left_out, *((entries[number].key, reason) for number, reason in ledger.skipped)]
    _put_lines(directory / NAMES, ((entries[number].key,) for number in ledger.sample[: ledger.records].tolist()))
    _put_lines(directory / SKIPPED, skipped)
    _put_lines(directory / ODD, ((entries[number].key, remark) for number, remark in ledger.odd))
    header = Header(
        pack=plan.pack,
        kind=plan.recipe.kind,
        records=ledger.records,
        classes=tuple(plain(name) for name in source.classes),
        multi_label=source.multi_label,
        dtype=plan.recipe.dtype,
        shards=shards,
        skipped=len(skipped),
        remarks=dict(sorted(Counter(remark for _, remark in ledger.odd).items())),
        origin=plan.origin,
    )
    bits = _labels(ledger, entries, header)
    journal.close()  # the last shard is on disk before the index tells of it
    rows = ledger.rows[: ledger.records]
    header = _with_statistics(directory, (header, rows, bits), workers)
    _put(directory / INDEX, index_bytes(header, rows, bits))
    return header


def _with_statistics(directory: Path, index: Index, threads: int) -> Header:
    """The header with mean and deviation, where all records have as many channels, of finite numbers."""
    header, rows, _ = index
    channels = np.unique(rows["channels"])
    if len(channels) > 1:
        return header
    with Pack(directory, index=index) as pack:
        try:
            found = statistics(pack, channels=int(channels[0]), threads=threads)
        except BadInput:
            return header  # who trains on it is told
    return replace(header, mean=found.mean, std=found.std)


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


def plain(name: str) -> str:
    """``name`` in one line that UTF-8 can carry.

    >>> plain("a\\nb")
    'a\\\\nb'
    """
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("\\", "\\\\").translate({ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"})


def _put_lines(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    _put(path, "".join("\t".join(map(plain, row)) + "\n" for row in rows).encode("utf-8"))


def _put(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself
    finally:
        os.close(folder)
