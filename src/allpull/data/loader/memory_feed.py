"""The feed of a data set in memory."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from itertools import repeat

import numpy as np

from allpull.data.datasets.dataset import Dataset, Part
from allpull.data.loader.bad_samples import BadSamples
from allpull.data.loader.batches import Batch, Plan, evaluation_batches, training_batches
from allpull.data.loader.feed import Facts
from allpull.data.loader.pool import slots
from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec

DIGEST_IMAGES = 64


class MemoryFeed:
    """Batches of a ``Dataset``; ``cached``: repeats the first batch of an epoch, in pinned memory if there is a GPU.

    ``in_turn``: this many of the first batches of epoch 0, and the last, are generated once before the first step and
    used in turn by all steps. This is for synthetic data: only the training takes time then.
    """

    def __init__(self, dataset: Dataset, plan: Plan, *, limit: int = 0, cached: bool = False, in_turn: int = 0) -> None:
        self._train, self._test = dataset.train.first(limit), dataset.test
        self._plan, self._cached, self._in_turn = plan, cached, in_turn
        self._kept: dict[int, Batch] = {}  # by step
        self._facts = Facts(
            data=f"{dataset.name} {_digest(self._train)}",
            channels=dataset.channels,
            classes=dataset.classes,
            multi_label=dataset.train.labels.ndim == 2,
            pixels=dataset.pixels,
            test_pixels=dataset.pixels,
            mean=dataset.mean,
            std=dataset.std,
            samples=len(self._train),
            test_samples=len(self._test),
        )

    @property
    def facts(self) -> Facts:
        """See ``feed.Feed``."""
        return self._facts

    @property
    def steps(self) -> int:
        """See ``feed.Feed``."""
        return self._plan.steps(self._train)

    @property
    def bad_samples(self) -> Mapping[str, BadSamples]:
        """Empty: data in memory are decoded already."""
        return {}

    def pixels(self, epoch: int) -> tuple[int, int]:  # noqa: ARG002  the same in all epochs
        """See ``feed.Feed``."""
        return self._facts.pixels

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """See ``feed.Feed``."""
        if self._in_turn and not self._cached:
            self._keep()
            last = self.steps - 1  # may be smaller
            return (self._kept[step if step == last else step % self._in_turn] for step in range(first_step, last + 1))
        batches = training_batches(self._train, self._plan, epoch=epoch, first_step=first_step)
        if not self._cached:
            return batches
        first = next(batches, None)
        return iter(()) if first is None else repeat(_copied(first), self.steps - first_step)

    def _keep(self) -> None:
        """Generate the batches that are used in turn, once."""
        for step in {*range(min(self._in_turn, self.steps)), self.steps - 1} - set(self._kept):
            self._kept[step] = _copied(next(training_batches(self._train, self._plan, epoch=0, first_step=step)))

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """See ``feed.Feed``."""
        return evaluation_batches(self._test, rank=rank, ranks=ranks, size=size)

    def close(self) -> None:
        """Nothing is open."""


def _copied(batch: Batch) -> Batch:
    """A copy of the batch, in pinned memory if there is a GPU."""
    (kept,) = slots(1, batch.images.shape, batch.images.dtype.str)
    kept[:] = batch.images
    return dataclasses.replace(batch, images=kept)


def refuse_size(data: DataSpec, dataset: Dataset) -> None:
    """Refuse a size other than that of the data set: data in memory are not resized.

    Raises:
        BadInput: ``data.size`` is neither 0 nor the side of its images.
    """
    if data.size and dataset.pixels != (data.size, data.size):
        height, width = dataset.pixels
        raise BadInput(
            f"data.size is {data.size}, and the images of '{data.name}' have {height} × {width} pixels",
            hint="omit data.size: only packs are resized",
        )


def _digest(part: Part) -> str:
    """A checksum over all labels and ``DIGEST_IMAGES`` evenly spaced images, which identifies ``part``."""
    spread = max(1, len(part) // DIGEST_IMAGES)
    images = np.ascontiguousarray(part.images[::spread][:DIGEST_IMAGES])
    return f"{zlib.crc32(images.tobytes(), zlib.crc32(np.ascontiguousarray(part.labels).tobytes())):08x}"
