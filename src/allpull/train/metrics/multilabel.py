"""Scores of multi-label answers: micro and macro F1 and mean average precision, as scikit-learn defines them.

Predictions and truth are [samples, labels]. F1 needs only counts, which ranks add up; average precision needs the
scores of all samples together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from allpull.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class F1:
    """Harmonic means of precision and recall, 0 to 1: ``micro`` over all answers, ``macro`` the mean over labels."""

    micro: float
    macro: float


def label_counts(predicted: Tensor, truth: Tensor) -> Tensor:
    """True positives, false positives, false negatives per label: int64 [3, labels]; add over batches and ranks.

    ``predicted`` and ``truth`` are bool or 0 and 1, [samples, labels].

    Raises:
        BadInput: the shapes differ.

    >>> label_counts(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [0, 1]])).tolist()
    [[1, 1], [1, 0], [0, 1]]
    """
    _check(predicted, truth)
    positive, true = predicted.bool(), truth.bool()
    return torch.stack([(positive & true).sum(0), (positive & ~true).sum(0), (~positive & true).sum(0)])


def f1(counts: Tensor) -> F1:
    """F1 = 2 · TP / (2 · TP + FP + FN) of ``label_counts``; 0 for a label neither predicted nor true.

    >>> f1(torch.tensor([[1, 1], [1, 0], [0, 1]]))
    F1(micro=0.6666666666666666, macro=0.6666666666666666)
    """
    return F1(micro=float(_f1(counts.sum(1))), macro=float(_f1(counts).mean()))


def _f1(counts: Tensor) -> Tensor:
    tp, fp, fn = counts.double().unbind()
    score: Tensor = 2 * tp / (2 * tp + fp + fn).clamp(min=1)
    return score


def average_precision(scores: Tensor, truth: Tensor) -> Tensor:
    """Average precision of each label: float64 [labels].

    The sum over thresholds of (recall gained) × precision, where equal scores are one threshold. A label without
    positive samples gets 0, as in scikit-learn; one with a NaN score gets NaN.

    Raises:
        BadInput: the shapes differ, or there is no sample.

    >>> average_precision(torch.tensor([[0.9], [0.8], [0.7]]), torch.tensor([[1], [0], [1]])).tolist()
    [0.8333333333333333]
    """
    _check(scores, truth)
    samples = len(scores)
    if not samples:
        raise BadInput("no samples, so there is no average precision")
    ordered, order = scores.sort(dim=0, descending=True)
    true = truth.bool().gather(0, order)
    place = torch.arange(samples, device=scores.device)[:, None].expand_as(ordered)
    ends = torch.ones_like(true)
    ends[:-1] = ordered[:-1] != ordered[1:]
    # the last rank of equal scores: the nearest end at or after each one
    last = torch.where(ends, place, samples).flip(0).cummin(0).values.flip(0)
    precision = true.cumsum(0).gather(0, last).double() / (last + 1)
    average = (precision * true).sum(0) / true.sum(0).clamp(min=1)
    return torch.where(scores.isnan().any(0), torch.nan, average)


def mean_average_precision(scores: Tensor, truth: Tensor) -> float:
    """The mean of ``average_precision`` over labels (macro)."""
    return float(average_precision(scores, truth).mean())


def _check(answers: Tensor, truth: Tensor) -> None:
    if answers.shape != truth.shape or answers.dim() != 2:
        raise BadInput(f"answers {tuple(answers.shape)} and truth {tuple(truth.shape)} are not both [samples, labels]")
