"""Batches of one rank from one pack: the same global batches for any number of ranks and threads.

The content of a batch is a function of (seed, epoch, step), so a training can resume at any (epoch, step), also with
another number of ranks. The exception is ``Reading.by_files``: each rank reads only its own files.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Literal
from weakref import WeakSet

import numpy as np

from allpull.data.datasets.dataset import Labels
from allpull.data.images import Refused
from allpull.data.loader.bad_samples import BY_PILLOW, LEFT_OUT, REPLACED, SKIPPED, BadSample, BadSamples, too_many
from allpull.data.loader.batches import Batch, Plan
from allpull.data.loader.crop import DRAWS, Transform, View, views
from allpull.data.loader.decode import JOB_BYTES, Decoder, Job, StoredRecord, WantedSample, form, jobs, read
from allpull.data.loader.order import Indices, uniforms
from allpull.data.loader.pool import Ring, slots
from allpull.data.loader.resize import Array, Resizer, resizing
from allpull.data.loader.sharding import RankShare, Sharding, assembled, limit_records
from allpull.data.pack.read import Access, Index, Pack, read_index, split_shards
from allpull.errors import BadInput

DAMAGED = "its checksum is wrong"
SUBSTITUTES = 8  # attempts to replace a record that cannot be decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a pack is read.

    ``threads`` of this rank load ``ahead`` batches in advance; ``held`` stay valid (see ``pool.Ring``). ``block`` and
    ``mixed``: see ``order.block_order``. ``by_files``: a rank opens only its own files. ``on_odd``: a record that
    cannot be decoded is left out ("skip": its share of the step's mean is zero) or replaced ("substitute", drawn from
    (seed, epoch, sample)); more than the share ``odd_limit`` of an epoch is an error. ``cached``: repeat the first
    batch, which shows the speed of training with free data. ``limit``: only this many records, the first of each
    rank's files or of all; 0: all.
    """

    threads: int = 2
    ahead: int = 2
    held: int = 2
    block: int = 1
    mixed: int = 1
    by_files: bool = False
    on_odd: Literal["skip", "substitute"] = "skip"
    odd_limit: float = 1.0
    resizer: Resizer = "auto"
    fast: bool = False
    access: Access = "read"
    cached: bool = False
    limit: int = 0


class PackBatches:
    """A pack, open for one rank; any number of epochs, one at a time.

    ``resizer`` is the library that resizes, ``shares`` the sharding of records over ranks.
    """

    def __init__(
        self,
        directory: Path | str,
        plan: Plan,
        transform: Transform,
        reading: Reading | None = None,
        index: Index | None = None,
    ) -> None:
        """Open the pack; ``index``: see ``pack.read.Pack``.

        Raises:
            BadInput: it is damaged, empty, or holds pixels of several shapes.
            MissingPart: a library is not installed.
        """
        if plan.shift_pixels or plan.flip:
            raise BadInput("shift_pixels and flip are not for packs", hint="set area and mirror of Transform instead")
        self.transform, self.reading, self.bad_samples = transform, reading or Reading(), BadSamples()
        directory = Path(directory)
        index = index or read_index(directory)
        header, rows, _ = index
        if len(rows) == 0:
            raise BadInput(f"{directory}: a pack without records", hint="see its skipped.txt")
        splits = (
            [split_shards(header, rank, plan.ranks) for rank in range(plan.ranks)] if self.reading.by_files else None
        )
        self.channels, self.dtype = form(directory, header, rows)
        self.shares = Sharding(
            plan=plan,
            parts=limit_records([one.records for one in splits] if splits else [range(len(rows))], self.reading.limit),
            block=self.reading.block,
            mixed=self.reading.mixed,
        )
        by = resizing(self.reading.resizer)
        self.resizer = by.name
        self.decoder = Decoder(transform, by, fast=self.reading.fast)
        own = splits[plan.rank].shards if splits else None
        self.pack = Pack(directory, access=self.reading.access, shards=own, index=index)
        self._own = threading.local()
        self._open_batches: WeakSet[Generator[Batch]] = WeakSet()
        self._idle: dict[int, Ring] = {}  # by batch size: allocating memory costs more than decoding into it
        self._sizes = np.stack([self.pack.rows["height"], self.pack.rows["width"]], axis=1).astype(np.int64)

    def __len__(self) -> int:
        """The number of records in use, over all ranks."""
        return sum(map(len, self.shares.parts))

    def close(self) -> None:
        """Stop reading ahead, and close the files."""
        for batches in list(self._open_batches):
            batches.close()
        self.pack.close()

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.shares.steps

    def training(self, epoch: int, first_step: int = 0, *, size: int | None = None) -> Iterator[Batch]:
        """This rank's batches of ``epoch``, from ``first_step`` on: ``batches.Batch`` in slots (see ``pool.Ring``).

        ``images`` [n, size, size, channels], ``labels`` [n] or [n, classes]. ``size``, at most that of the transform,
        is for progressive resizing; slots are allocated for the largest.
        """
        size = self.transform.size if size is None else size
        batches = self._tracked(epoch, self.shares.of(epoch, first_step), (self.shares.largest, size))
        return self._repeat(batches, self.steps - first_step) if self.reading.cached else batches

    def evaluation(self, size: int, *, rank: int | None = None, ranks: int | None = None) -> Iterator[Batch]:
        """The records of rank ``rank`` of ``ranks`` (default: as in training), in batches of ``size``.

        Each record is on exactly one rank, without padding. A rank has consecutive records, so that reads are long;
        with ``by_files`` those of its own files, whatever ``rank`` says.

        Raises:
            BadInput: the transform is random.
        """
        if self.transform.crop == "random" or self.transform.mirror or self.transform.turn:
            raise BadInput("evaluation by random crops", hint="open the pack with Transform(crop='centre', …)")
        plan, own = self.shares.plan, self.shares.own
        if not self.reading.by_files:
            rank, ranks = plan.rank if rank is None else rank, ranks or plan.ranks
            own = own[len(own) * rank // ranks : len(own) * (rank + 1) // ranks]

        def shares() -> Iterator[RankShare]:
            for start in range(own.start, own.stop, size):
                part = np.arange(start, min(start + size, own.stop))
                yield RankShare(records=part, counted=len(part), global_samples=len(part))

        return self._tracked(0, shares(), (min(size, max(1, len(own))), self.transform.size))

    def _repeat(self, batches: Generator[Batch], times: int) -> Iterator[Batch]:
        with closing(batches):  # stops its threads
            first = next(batches, None)
        return iter(()) if first is None else repeat(first, times)

    def _tracked(self, epoch: int, shares: Iterator[RankShare], shape: tuple[int, int]) -> Generator[Batch]:
        batches = self._generate(epoch, shares, shape)
        self._open_batches.add(batches)
        return batches

    def _generate(self, epoch: int, shares: Iterator[RankShare], shape: tuple[int, int]) -> Generator[Batch]:
        """The batches of ``shares``: at most ``shape[0]`` samples, of ``shape[1]`` pixels a side."""
        largest, size = shape
        slot_shape = largest, size, size, self.channels

        def as_images(slot: Array) -> Array:
            return slot[: math.prod(slot_shape)].reshape(slot_shape)

        started: deque[RankShare] = deque()  # appended by the ring's threads, in order

        def batches() -> Iterator[list[Job]]:
            for share in shares:
                started.append(share)
                yield self._jobs(epoch, share.records)

        ring = self._idle.pop(largest, None) or self._ring(largest)
        lost, too_much = 0, self.reading.odd_limit * len(self)
        try:
            with closing(ring.run(batches(), lambda job, slot: self._fill(job, as_images(slot)))) as filled:
                for one in filled:
                    share = started.popleft()
                    loaded = np.empty(len(share.records), np.int64)
                    for job, records in zip(one.jobs, one.outcomes, strict=True):
                        loaded[[sample.slot for sample in job.samples]] = records
                    lost += self.bad_samples.count_batch(share.records, loaded, share.counted)
                    if lost > too_much:  # on this rank alone, before the end of the epoch
                        raise too_many(lost, len(self), self.reading.odd_limit, "train", so_far=True)
                    yield assembled(share, as_images(one.slot), loaded, self._labels)
        finally:
            self._idle[largest] = ring

    def _ring(self, largest: int) -> Ring:
        reading, numbers = self.reading, largest * self.transform.size**2 * self.channels
        return Ring(
            slots(reading.ahead + reading.held, (numbers,), self.dtype), held=reading.held, threads=reading.threads
        )

    def _labels(self, records: Indices) -> Labels:
        """The labels of ``records``, unpacked per batch: all of a large multi-label pack would fill a rank's memory."""
        header = self.pack.header
        if not header.multi_label:
            return self.pack.rows["label"][records].astype(np.int64)
        bits = np.unpackbits(self.pack.bits[records], axis=1, count=len(header.classes), bitorder="little")
        return bits.astype(np.int64)

    def _jobs(self, epoch: int, records: Indices) -> list[Job]:
        draws = uniforms(self.shares.plan.seed, epoch, records, DRAWS)
        return jobs(self.pack, epoch, records, views(self.transform, self._sizes[records], draws))

    def _fill(self, job: Job, slot: Array) -> list[int]:
        """Run a job; returns the record loaded for each sample, or SKIPPED."""
        stored = read(self.pack, job.samples, self._memory())
        return [self._sample(job.epoch, one, next(stored), slot[one.slot]) for one in job.samples]

    def _memory(self) -> memoryview:
        """This thread's read buffer."""
        memory: memoryview | None = getattr(self._own, "memory", None)
        if memory is None:
            memory = self._own.memory = np.empty(JOB_BYTES, np.uint8).data
        return memory

    def _sample(self, epoch: int, wanted: WantedSample, stored: StoredRecord, slot: Array) -> int:
        record = wanted.record
        reason = self._into(epoch, record, stored, wanted.view, slot)
        if not reason:
            return record
        if self.reading.on_odd == "substitute":
            for other in self._substitutes(epoch, record):
                if not self._into(epoch, other, StoredRecord.of(self.pack, other), self._view(epoch, other), slot):
                    self.bad_samples.add(BadSample(epoch, record, reason, REPLACED, other))
                    return other
        slot[:] = 0
        self.bad_samples.add(BadSample(epoch, record, reason, LEFT_OUT))
        return SKIPPED

    def _into(self, epoch: int, record: int, stored: StoredRecord, view: View, slot: Array) -> str:
        """Decode a record; returns why it could not be decoded, or "". Its checksum is compared when first read."""
        if not self.pack.intact(record, stored.whole):
            return DAMAGED
        try:
            unusual = self.decoder.into(slot, stored, view)
        except Refused as refused:
            return str(refused)
        if unusual:
            self.bad_samples.add(BadSample(epoch, record, unusual, BY_PILLOW))
        return ""

    def _view(self, epoch: int, record: int) -> View:
        one = np.array([record])
        return views(self.transform, self._sizes[one], uniforms(self.shares.plan.seed, epoch, one, DRAWS))[0]

    def _substitutes(self, epoch: int, record: int) -> list[int]:
        """Records to try instead of ``record``: the same on any rank."""
        drawn = uniforms(self.shares.plan.seed, epoch, np.array([record]), DRAWS + SUBSTITUTES)[0, DRAWS:]
        own = self.shares.own
        return [own[int(one * len(own))] for one in drawn]
