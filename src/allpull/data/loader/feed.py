"""What a feed of batches offers a trainer, and what a trainer must know of the data before the first batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from allpull.data.loader.bad_samples import Odd
from allpull.data.loader.batches import Batch

HELD = 2  # batches that stay valid: the one just taken and the one before, so that its copy to a device may go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A data set as a model sees it.

    ``data`` tells the samples to train on from others, also where these are as many.
    ``pixels`` (height, width) of training once pictures have grown to their full size, ``test_pixels`` of evaluation.
    ``mean`` and ``std`` are in units of the stored numbers: one number, or one a channel. ``samples`` are those of
    training that are used, ``test_samples`` all of the test part. The labels of a batch are classes [n] or, with
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

    A batch stays as it is until ``HELD`` more have been asked for; then another is written where it stood.
    """

    @property
    def facts(self) -> Facts:
        """What the data are."""
        ...

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        ...

    @property
    def odd(self) -> Mapping[str, Odd]:
        """Samples of this rank that were odd so far, of the parts ``train`` and ``test``; empty where none can be."""
        ...

    def pixels(self, epoch: int) -> tuple[int, int]:
        """Height and width of the images of ``epoch``, the same on every rank."""
        ...

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of ``epoch``, from step ``first_step`` of it on; one epoch at a time."""
        ...

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """Rank ``rank``'s share of the test part in batches of ``size``; (0, 1) is all of it.

        Each sample comes once on one rank, none is padded: ``global_samples`` of all batches of all ranks add up to
        ``facts.test_samples``. Of a batch only the first ``samples`` rows count. They are fewer than
        ``global_samples`` where samples could not be decoded; those are left out and counted in ``odd``.
        """
        ...

    def close(self) -> None:
        """End the threads and close the files; batches that were given must not be read any more."""
        ...
