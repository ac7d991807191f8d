"""Exact evaluation on any number of ranks: every sample once, none padded, and one sum at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from allpull import marks
from allpull.data.loader.batches import Batch
from allpull.train.metrics.score import Score, Tally, tally_of
from allpull.train.optim.ema import Average
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import Shared


class Samples(Protocol):
    """The test samples: those of ``rank`` if they are shared out to ``ranks``, each to one, in batches.

    Of a batch the first ``samples`` rows count, of ``global_samples`` that there were to see.
    """

    def __call__(self, *, rank: int, ranks: int) -> Iterator[Batch]:
        """Its batches; a rank may have none."""


def called(network: nn.Module, images: Tensor) -> Tensor:
    """``network`` of ``images``, as it is."""
    logits: Tensor = network(images)
    return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """How a network is scored, the same in each evaluation.

    ``samples`` are those of the whole test part. ``prepare`` makes of a batch what the network takes, and its targets;
    ``forward`` calls the network on them, in the precision of the training. ``serial``: rank 0 sees all samples, and
    the others wait for it.
    """

    classes: int
    samples: int
    prepare: Callable[[Batch], tuple[Tensor, Tensor]]
    multi_label: bool = False
    serial: bool = False
    forward: Callable[[nn.Module, Tensor], Tensor] = called


def evaluate(
    shared: Shared, samples: Samples, ranks: Ranks, how: Examination, *, average: Average | None = None
) -> Score:
    """Score the network, or its moving average, with the batch statistics averaged over ranks; every rank calls it.

    All ranks get the same score. Those that evaluate stand in the phase ``evaluation`` meanwhile.

    Raises:
        RuntimeError: the ranks together were not given each sample exactly once.
        BadInput: there was no sample to see.
    """
    takes_part = ranks.rank == 0 or not how.serial
    place, places = (0, 1) if how.serial else (ranks.rank, ranks.ranks)
    tally = tally_of(how.classes, multi_label=how.multi_label, device=ranks.device)
    given = 0
    phase: AbstractContextManager[None] = marks.phase("evaluation") if takes_part else nullcontext()
    # the average before the whole: ranks gather the weights that are there then
    with phase, average.in_place() if average else nullcontext(), shared.whole():
        ranks.average_buffers(shared.model)
        if takes_part:  # whoever watches takes ``eval`` for the begin of an evaluation
            given = _examine(shared.model, samples(rank=place, ranks=places), how, tally)
        given = int(ranks.total(torch.tensor(given, device=ranks.device)).item())
        score = tally.score(ranks)
    if given != how.samples:
        raise RuntimeError(f"evaluated {given} samples of {how.samples}")
    return score


def _examine(network: nn.Module, batches: Iterator[Batch], how: Examination, tally: Tally) -> int:
    """Count the answers to ``batches``; how many samples there were to see."""
    given = 0
    network.eval()
    with torch.no_grad():
        for batch in batches:
            images, targets = how.prepare(batch)
            logits = how.forward(network, images)
            tally.add(logits[: batch.samples], targets[: batch.samples])
            given += batch.global_samples
    network.train()
    return given
