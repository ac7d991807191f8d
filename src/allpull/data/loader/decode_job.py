"""What one thread does at a time: some samples of a batch, read by as few calls, and as few bytes, as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allpull.data.loader.crop import View
from allpull.data.loader.decode import Stored
from allpull.data.loader.order import Indices
from allpull.data.pack.read import Pack
from allpull.data.pack_format import RAW, Row

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
