"""The interface of a feed of batches, and the facts about its data that a trainer needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from allpull.data.loader.bad_samples import BadSamples
from allpull.data.loader.batches import Batch

HELD = 2  # batches that stay valid: the latest and the previous one, whose copy to a device may still run


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a data set that a model depends on.

    ``data`` identifies the training samples.
    ``pixels`` (height, width) of training at full size, after progressive resizing; ``test_pixels`` of evaluation.
    ``mean`` and ``std`` are in units of the stored numbers: one number, or one per channel. ``samples`` counts the
    training samples in use, ``test_samples`` the whole test part. The labels of a batch are classes [n] or, with
    ``multi_label``, zeros and ones [n, classes].
    """

    data: str
    channels: int
    classes: int
    multi_label: bool
    pixels: tuple[int, int]
    test_pixels: tuple[int, int]
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    samples: int
    test_samples: int


class Feed(Protocol):
    """The batches of one rank, epoch after epoch.

    A batch stays valid until ``HELD`` more have been requested; then its slot is reused.
    """

    @property
    def facts(self) -> Facts:
        """The facts about the data."""
        ...

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        ...

    @property
    def bad_samples(self) -> Mapping[str, BadSamples]:
        """The bad samples of this rank so far, of the parts ``train`` and ``test``; empty for data in memory."""
        ...

    def pixels(self, epoch: int) -> tuple[int, int]:
        """Height and width of the images of ``epoch``, the same on every rank."""
        ...

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of ``epoch``, starting at step ``first_step``; one epoch at a time."""
        ...

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """Rank ``rank``'s share of the test part in batches of ``size``; (0, 1) is all of it.

        Each sample is on exactly one rank, without padding: ``global_samples`` of all batches of all ranks add up to
        ``facts.test_samples``. Only the first ``samples`` rows of a batch count. They are fewer than
        ``global_samples`` if samples could not be decoded; those are left out and counted in ``bad_samples``.
        """
        ...

    def close(self) -> None:
        """Stop the threads and close the files; batches must not be read afterwards."""
        ...
