"""Batches of one rank from a folder of image files, each read and decoded by worker processes of torch's DataLoader.

The order of samples and their augmentation are those of packs: functions of (seed, epoch, sample), whatever the number
of ranks and workers. A worker makes whole batches, as in any program with a DataLoader.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from allpull.data.datasets.dataset import Labels
from allpull.data.images import MAX_SOURCE_BYTES, Refused, decode
from allpull.data.loader.bad_samples import LEFT_OUT, REPLACED, SKIPPED, BadSample, BadSamples, too_many
from allpull.data.loader.batches import Batch, Plan
from allpull.data.loader.crop import DRAWS, Transform, views
from allpull.data.loader.feed import HELD
from allpull.data.loader.order import Indices, uniforms
from allpull.data.loader.pool import pins_memory
from allpull.data.loader.resize import Array, Resizer, Resizing, resize_middle, resizing, turn
from allpull.data.loader.sharding import RankShare, Sharding, assembled
from allpull.errors import MissingPart
from allpull.regular_file import regular

SUBSTITUTES = 8  # attempts to replace a file that cannot be decoded


class ImageFiles:
    """Paths and labels of many files in three arrays: worker processes would copy a list, object by object."""

    def __init__(self, paths: Iterable[str], labels: Iterable[int]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self.labels: Labels = np.fromiter(labels, np.int64, len(encoded))
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        self._text = b"".join(encoded)

    def __len__(self) -> int:
        """The number of files."""
        return len(self.labels)

    def path(self, index: int) -> bytes:
        """The path of file ``index``."""
        return self._text[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]

    def digest(self, root: Path) -> int:
        """A checksum of all paths below ``root`` and all labels, which identifies the files wherever they lie."""
        return zlib.crc32(self._text.replace(os.fsencode(root), b""), zlib.crc32(self.labels.tobytes()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """How files are read: by ``workers`` processes of this rank, each ``ahead`` batches in advance; 0: by the rank.

    ``on_odd``, ``odd_limit``, ``cached``: as in ``pack_batches.Reading``.
    """

    workers: int = 0
    ahead: int = 2
    on_odd: Literal["skip", "substitute"] = "skip"
    odd_limit: float = 1.0
    resizer: Resizer = "auto"
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """The files of one batch of ``epoch``."""

    epoch: int
    records: Indices


class FolderBatches:
    """A folder of image files, open for one rank; any number of epochs, one at a time."""

    def __init__(self, files: ImageFiles, plan: Plan, transform: Transform, reading: FileReading) -> None:
        """Prepare to read; worker processes start with the first batch.

        Raises:
            MissingPart: torch, or a library that decodes or resizes, is not installed.
        """
        self.transform, self.reading, self.bad_samples = transform, reading, BadSamples()
        self.shares = Sharding(plan=plan, parts=[range(len(files))])
        self._files, self._seed = files, plan.seed
        self._open_batches: WeakSet[Generator[Batch]] = WeakSet()
        self._requests: Iterator[Request] = iter(())
        self._loader = _data_loader(_Dataset(files, plan.seed, transform, reading), _Requests(self), reading)

    def __len__(self) -> int:
        """The number of files in use, over all ranks."""
        return len(self._files)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.shares.steps

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of ``epoch``, from ``first_step`` on."""
        batches = self._tracked(epoch, self.shares.of(epoch, first_step))
        if not self.reading.cached:
            return batches
        with closing(batches):
            first = next(batches, None)
        return iter(()) if first is None else repeat(first, self.steps - first_step)

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """The files of rank ``rank`` of ``ranks`` in batches of ``size``; each file is on exactly one rank."""
        start, stop = len(self) * rank // ranks, len(self) * (rank + 1) // ranks
        parts = (np.arange(first, min(first + size, stop)) for first in range(start, stop, size))
        return self._tracked(
            0, (RankShare(records=part, counted=len(part), global_samples=len(part)) for part in parts)
        )

    def close(self) -> None:
        """Stop the worker processes."""
        for batches in list(self._open_batches):
            batches.close()
        self._loader = None  # its end is that of its workers

    def _tracked(self, epoch: int, shares: Iterator[RankShare]) -> Generator[Batch]:
        batches = self._generate(epoch, shares)
        self._open_batches.add(batches)
        return batches

    def _generate(self, epoch: int, shares: Iterator[RankShare]) -> Generator[Batch]:
        started: deque[RankShare] = deque()  # requested, in order

        def requests() -> Iterator[Request]:
            for share in shares:
                started.append(share)
                yield Request(epoch, share.records)

        self._requests = requests()
        held: deque[Any] = deque(maxlen=HELD + 1)  # page-locked memory whose copy to a device may still run
        lost, too_much = 0, self.reading.odd_limit * len(self)
        for images, loaded, bad_samples in self._loader:
            held.append(images)
            share = started.popleft()
            for remark in bad_samples:
                self.bad_samples.add(remark)
            lost += self.bad_samples.count_batch(share.records, loaded, share.counted)
            if lost > too_much:
                raise too_many(lost, len(self), self.reading.odd_limit, "train", so_far=True)
            yield assembled(share, images.numpy(), loaded, lambda records: self._files.labels[records])

    def _next_requests(self) -> Iterator[Request]:
        return self._requests


class _Requests:
    """The sampler of a DataLoader: the batches of the epoch that is being loaded."""

    def __init__(self, batches: FolderBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Request]:
        return self._batches._next_requests()


class _Dataset:
    """What a worker process has: request → images [n, size, size, 3], the files loaded, and bad samples."""

    def __init__(self, files: ImageFiles, seed: int, transform: Transform, reading: FileReading) -> None:
        self._files, self._seed, self._transform, self._reading = files, seed, transform, reading
        resizing(reading.resizer)  # fails here, not in a worker
        self._by: Resizing | None = None  # of this process

    def __getitem__(self, request: Request) -> tuple[Any, Indices, list[BadSample]]:
        torch: Any = sys.modules["torch"]
        size = self._transform.size
        images = torch.empty((len(request.records), size, size, 3), dtype=torch.uint8)
        if torch.utils.data.get_worker_info() is not None:
            images.share_memory_()  # decoded where the rank reads it; otherwise it is copied there
        bad_samples: list[BadSample] = []
        loaded = [
            self._sample(request.epoch, record, slot, bad_samples)
            for record, slot in zip(request.records.tolist(), images.numpy(), strict=True)
        ]
        return images, np.array(loaded, np.int64), bad_samples

    def _sample(self, epoch: int, record: int, slot: Array, bad_samples: list[BadSample]) -> int:
        """Load a file, or a substitute; returns the file loaded, or SKIPPED."""
        reason = self._into(epoch, record, slot)
        if not reason:
            return record
        for other in self._substitutes(epoch, record) if self._reading.on_odd == "substitute" else ():
            if not self._into(epoch, other, slot):
                bad_samples.append(BadSample(epoch, record, reason, REPLACED, other))
                return other
        slot[:] = 0
        bad_samples.append(BadSample(epoch, record, reason, LEFT_OUT))
        return SKIPPED

    def _into(self, epoch: int, record: int, slot: Array) -> str:
        """Decode, crop and resize a file; returns why that failed, or ""."""
        try:
            pixels, _ = decode(_read(self._files.path(record)))
        except Refused as refused:
            return str(refused)
        one = np.array([record])
        draws = uniforms(self._seed, epoch, one, DRAWS)
        (view,) = views(self._transform, np.array([pixels.shape[:2]], np.int64), draws)
        if self._transform.crop == "centre":
            resize_middle(pixels, slot, self._transform)
        else:
            self._by = self._by or resizing(self._reading.resizer)
            box = view.box
            self._by.resize(pixels[box.top : box.top + box.height, box.left : box.left + box.width], slot)
        if view.mirrored:
            turn(slot)
        if view.turns:
            turn(slot, view.turns)
        return ""

    def _substitutes(self, epoch: int, record: int) -> list[int]:
        """Files to try instead of ``record``: the same on any rank."""
        drawn = uniforms(self._seed, epoch, np.array([record]), DRAWS + SUBSTITUTES)[0, DRAWS:]
        return [int(one * len(self._files)) for one in drawn]


def _read(path: bytes) -> bytes:
    """The bytes of a regular file.

    Raises:
        Refused: it cannot be read, or is too large for an image.
    """
    try:
        with os.fdopen(regular(path), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_SOURCE_BYTES:
                raise Refused("a file too large for an image")
            return file.read(size)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from error


def _data_loader(dataset: _Dataset, requests: _Requests, reading: FileReading) -> Any:
    """A DataLoader of torch that yields whole batches.

    Raises:
        MissingPart: torch is not installed.
    """
    try:
        torch_data = import_module("torch.utils.data")  # this room does not import torch; ranks have it
    except ImportError as error:
        raise MissingPart("torch is not installed, and its DataLoader reads image folders") from error
    return torch_data.DataLoader(
        dataset,
        batch_size=None,  # a request is a whole batch
        sampler=requests,
        collate_fn=_unchanged,
        num_workers=reading.workers,
        prefetch_factor=reading.ahead if reading.workers else None,
        persistent_workers=reading.workers > 0,
        pin_memory=pins_memory(),
        worker_init_fn=_start_worker,
    )


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(worker: int) -> None:  # noqa: ARG001  torch's interface
    """A queue's warning goes to all processes of a job: workers ignore it, and end with their rank."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
