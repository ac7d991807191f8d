"""A data set in memory: images and labels of a training and a test part; and the table of such data sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.registry import Table

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a data set: ``images`` [n, height, width, channels] and ``labels`` [n]."""

    images: Bytes
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> Part:
        """The first ``count`` samples; 0 means all."""
        return Part(images=self.images[:count], labels=self.labels[:count]) if count else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set with its description.

    ``mean`` and ``std`` are those of the training part, in units of the stored bytes.
    """

    name: str
    train: Part
    test: Part
    classes: int
    mean: float
    std: float

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.train.images.shape[3])

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of an image."""
        return int(self.train.images.shape[1]), int(self.train.images.shape[2])


DATASETS = Table(
    kind="data set",
    group="allpull.datasets",
    builtin={
        "digits": "allpull.data.datasets.digits:read",
        "fashion-mnist": "allpull.data.datasets.fashion_mnist:read_fashion_mnist",
    },
)
"""Name → function from a folder ("" for the default one) to a ``Dataset``."""


def read(name: str, path: str) -> Dataset:
    """The data set ``name`` of ``DATASETS`` in folder ``path``; "": its default folder.

    Raises:
        AllpullError: there is no such data set, or its files are missing or damaged.
    """
    dataset: Dataset = DATASETS.load(name)(path)
    return dataset


def with_statistics(name: str, train: Part, test: Part, classes: int) -> Dataset:
    """A data set from its parts, with the statistics of the training part."""
    return Dataset(
        name=name,
        train=train,
        test=test,
        classes=classes,
        mean=float(train.images.mean()),
        std=float(train.images.std()),
    )
