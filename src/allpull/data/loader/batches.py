"""Batches of one rank from a data set in memory, with augmentation by shifts and mirroring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allpull.data.datasets.dataset import Bytes, Labels, Part
from allpull.data.loader.order import Uniforms, epoch_order, rank_slice, steps_per_epoch, uniforms


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One rank's share of one global batch.

    ``images`` [n, height, width, channels], bytes or what a pack of raw pixels holds, and ``labels`` [n], or zeros
    and ones [n, classes]; the first ``samples`` of them count. A rank whose share of a ragged batch is empty borrows
    one sample of weight 0, so that it still takes part in the collectives.
    """

    images: npt.NDArray[Any]
    labels: Labels
    samples: int
    global_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the training part is split into batches for one rank of ``ranks``."""

    global_batch: int
    rank: int
    ranks: int
    seed: int
    shift_pixels: int = 0
    flip: bool = False

    def steps(self, part: Part) -> int:
        """Steps of one epoch."""
        return steps_per_epoch(len(part), self.global_batch)


def training_batches(part: Part, plan: Plan, *, epoch: int, first_step: int = 0) -> Iterator[Batch]:
    """This rank's batches of ``epoch``, starting at step ``first_step``."""
    order = epoch_order(len(part), plan.seed, epoch)
    for step in range(first_step, plan.steps(part)):
        global_indices = order[step * plan.global_batch : (step + 1) * plan.global_batch]
        own = rank_slice(global_indices, plan.rank, plan.ranks)
        chosen = own if len(own) else global_indices[:1]
        images = part.images[chosen]
        if plan.shift_pixels or plan.flip:
            draws = uniforms(plan.seed, epoch, chosen, DRAWS)
            images = augment(images, draws, shift_pixels=plan.shift_pixels, flip=plan.flip)
        yield Batch(images=images, labels=part.labels[chosen], samples=len(own), global_samples=len(global_indices))


def evaluation_batches(part: Part, *, rank: int, ranks: int, size: int) -> Iterator[Batch]:
    """This rank's share of ``part``, each sample on exactly one rank, without padding."""
    own = np.arange(rank, len(part), ranks)
    for start in range(0, len(own), size):
        chosen = own[start : start + size]
        images, labels = part.images[chosen], part.labels[chosen]
        yield Batch(images=images, labels=labels, samples=len(chosen), global_samples=len(chosen))


DRAWS = 3  # vertical shift, horizontal shift, mirror


def augment(images: Bytes, draws: Uniforms, *, shift_pixels: int, flip: bool) -> Bytes:
    """Each image shifted by up to ``shift_pixels`` each way (padded with zeros) and, with ``flip``, half mirrored.

    Args:
        images: [n, height, width, channels].
        draws: [n, DRAWS] in [0, 1).
        shift_pixels: largest shift, 0 for none.
        flip: whether half of the images are mirrored left to right.

    Returns:
        A new array of the same shape.
    """
    count, height, width, _ = images.shape
    steps = np.floor(draws[:, :2] * (2 * shift_pixels + 1)).astype(np.int64)
    padded = np.pad(images, ((0, 0), (shift_pixels, shift_pixels), (shift_pixels, shift_pixels), (0, 0)))
    rows = steps[:, 0, None] + np.arange(height)
    columns = steps[:, 1, None] + np.arange(width)
    if flip:
        mirrored = draws[:, 2] < 0.5
        columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    moved: Bytes = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved
