"""Exact evaluation on any number of ranks: each sample once, no padding, and one reduction at the end."""

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
from allpull.train.parallel.strategy import SharedModel


class Samples(Protocol):
    """The test samples of ``rank`` in batches, when they are partitioned over ``ranks``.

    The first ``samples`` rows of a batch count; ``global_samples`` were read for it.
    """

    def __call__(self, *, rank: int, ranks: int) -> Iterator[Batch]:
        """The batches of this rank, possibly none."""


def plain_forward(network: nn.Module, images: Tensor) -> Tensor:
    """The logits of ``network`` without autocast."""
    logits: Tensor = network(images)
    return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """How a network is scored, the same in each evaluation.

    ``samples`` counts the whole test part. ``prepare`` turns a batch into network input and targets; ``forward``
    calls the network in the precision of the training. ``serial``: rank 0 evaluates all samples and the others wait.
    """

    classes: int
    samples: int
    prepare: Callable[[Batch], tuple[Tensor, Tensor]]
    multi_label: bool = False
    serial: bool = False
    forward: Callable[[nn.Module, Tensor], Tensor] = plain_forward


def evaluate(
    shared: SharedModel, samples: Samples, ranks: Ranks, plan: EvaluationPlan, *, average: Average | None = None
) -> Score:
    """Score the network, or its moving average, with batch statistics averaged over ranks; every rank calls it.

    All ranks get the same score. The ranks that evaluate are in phase ``evaluation`` meanwhile.

    Raises:
        RuntimeError: the ranks together did not read each sample exactly once.
        BadInput: there is no test sample.
    """
    takes_part = ranks.rank == 0 or not plan.serial
    rank, world_size = (0, 1) if plan.serial else (ranks.rank, ranks.ranks)
    tally = tally_of(plan.classes, multi_label=plan.multi_label, device=ranks.device)
    evaluated = 0
    phase: AbstractContextManager[None] = marks.phase("evaluation") if takes_part else nullcontext()
    # averaged weights first: ``gathered`` collects the weights that are in place at that time
    with phase, average.in_place() if average else nullcontext(), shared.gathered():
        ranks.average_buffers(shared.model)
        if takes_part:  # observers take ``eval()`` for the start of an evaluation
            evaluated = _evaluate_batches(shared.model, samples(rank=rank, ranks=world_size), plan, tally)
        evaluated = int(ranks.total(torch.tensor(evaluated, device=ranks.device)).item())
        score = tally.score(ranks)
    if evaluated != plan.samples:
        raise RuntimeError(f"evaluated {evaluated} samples of {plan.samples}")
    return score


def _evaluate_batches(network: nn.Module, batches: Iterator[Batch], plan: EvaluationPlan, tally: Tally) -> int:
    """Tally the answers to ``batches``; returns the number of samples read."""
    evaluated = 0
    network.eval()
    with torch.no_grad():
        for batch in batches:
            images, targets = plan.prepare(batch)
            logits = plan.forward(network, images)
            tally.add(logits[: batch.samples], targets[: batch.samples])
            evaluated += batch.global_samples
    network.train()
    return evaluated
