"""Exact evaluation on any number of ranks: every sample once, no padding, one reduction at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allpull.load.batches import Batch, evaluation_batches
from allpull.load.dataset import Part
from allpull.train.ranks import Ranks

TOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good the model is on ``samples`` samples: mean loss, top-1 and top-5 as fractions."""

    loss: float
    top1: float
    top5: float
    samples: int


def evaluate(
    model: nn.Module, part: Part, ranks: Ranks, *, size: int, to_tensors: Callable[[Batch], tuple[Tensor, Tensor]]
) -> Score:
    """Score ``model`` (not wrapped) on ``part``, ``size`` samples a rank and pass.

    Raises:
        RuntimeError: the ranks together did not see each sample exactly once.
    """
    # [summed loss, right at first guess, right within five, samples]; counts are exact in float64 up to 2^53
    sums = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    model.eval()
    with torch.no_grad():
        for batch in evaluation_batches(part, rank=ranks.rank, ranks=ranks.ranks, size=size):
            images, labels = to_tensors(batch)
            logits = model(images)
            guesses = logits.topk(min(TOP, logits.shape[1]), dim=1).indices == labels[:, None]
            loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
            sums += torch.stack([loss.double(), guesses[:, 0].sum(), guesses.sum(), torch.tensor(len(labels))])
    model.train()
    loss_sum, right1, right5, samples = ranks.total(sums).tolist()
    if samples != len(part):
        raise RuntimeError(f"evaluated {samples:.0f} samples of {len(part)}")
    return Score(loss=loss_sum / samples, top1=right1 / samples, top5=right5 / samples, samples=int(samples))
