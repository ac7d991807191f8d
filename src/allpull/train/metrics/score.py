"""The score of a network: counts that add up over batches and ranks, and the metrics made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from allpull.errors import BadInput
from allpull.train.metrics.loss import summed_loss
from allpull.train.metrics.multilabel import f1, label_counts, mean_average_precision
from allpull.train.parallel.gather import gather_rows
from allpull.train.parallel.ranks import Ranks

TOP = 5


def top_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """How many of ``targets`` [n] are the first, and are among the first five, of ``logits`` [n, classes]: [2].

    >>> top_hits(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])).tolist()
    [1, 2]
    """
    guesses = logits.topk(min(TOP, logits.shape[1]), dim=1).indices == targets[:, None]
    return torch.stack([guesses[:, 0].sum(), guesses.sum()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a network on ``samples`` samples: mean loss, and fractions of 1.

    With one label per sample, top-1 and top-5 accuracy; with several, micro and macro F1 and the mean average
    precision over labels.
    """

    loss: float
    samples: int
    top1: float | None = None
    top5: float | None = None
    f1_micro: float | None = None
    f1_macro: float | None = None
    map: float | None = None

    def metrics(self) -> dict[str, float]:
        """The measured values by the names under which they are recorded.

        >>> Score(loss=0.5, samples=10, top1=0.9, top5=1.0).metrics()
        {'test_loss': 0.5, 'test_top1': 0.9, 'test_top5': 1.0}
        """
        values = {name: getattr(self, name) for name in ("loss", *SHARES)}
        return {f"test_{name}": value for name, value in values.items() if value is not None}

    def summary(self) -> str:
        """One line for people.

        >>> Score(loss=0.5, samples=10, top1=0.9, top5=1.0).summary()
        'test top-1 0.9000, top-5 1.0000, loss 0.5000 (10 samples)'
        """
        shares = [
            f"{word} {getattr(self, name):.4f}" for name, word in SHARES.items() if getattr(self, name) is not None
        ]
        return f"test {', '.join(shares)}, loss {self.loss:.4f} ({self.samples} samples)"


SHARES = {"top1": "top-1", "top5": "top-5", "f1_micro": "micro F1", "f1_macro": "macro F1", "map": "mAP"}
"""Field of ``Score`` → its name in the summary."""


class Tally(Protocol):
    """The counts of one evaluation on one rank."""

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Count the answers [n, classes] to some samples."""

    def score(self, ranks: Ranks) -> Score:
        """The score of what all ranks counted; a collective."""


def tally_of(classes: int, *, multi_label: bool, device: torch.device) -> Tally:
    """An empty tally."""
    return LabelTally(classes, device) if multi_label else ClassTally(device)


class ClassTally:
    """Counts with one label per sample."""

    def __init__(self, device: torch.device) -> None:
        # [summed loss, top-1 hits, top-5 hits, samples]; counts are exact in float64 up to 2^53
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Count the answers [n, classes] to samples of classes ``targets`` [n]; nothing is read by the host."""
        self._sums[0] += summed_loss(logits, targets).double()
        self._sums[1:3] += top_hits(logits, targets)
        self._sums[3] += len(targets)

    def score(self, ranks: Ranks) -> Score:
        """The score of what all ranks counted; a collective."""
        loss, top1, top5, samples = ranks.total(self._sums.clone()).tolist()
        _check(samples)
        return Score(loss=loss / samples, samples=int(samples), top1=top1 / samples, top5=top5 / samples)


class LabelTally:
    """Counts with several of ``labels`` labels per sample; a label is predicted if its probability exceeds one half."""

    def __init__(self, labels: int, device: torch.device) -> None:
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)
        self._counts = torch.zeros(3, labels, dtype=torch.int64, device=device)
        # average precision needs all answers at once: 17 MB for 50,000 samples of 43 labels
        self._logits = [torch.zeros(0, labels, device=device, dtype=torch.float64)]
        self._truth = [torch.zeros(0, labels, device=device, dtype=torch.uint8)]

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Count the answers [n, labels] to samples with ``targets`` [n, labels] of 0 and 1."""
        truth = targets > 0
        self._loss += summed_loss(logits, targets, multi_label=True).double()
        self._counts += label_counts(logits > 0, truth)
        self._logits.append(logits.double())  # probabilities have the same order, but large ones round to 1
        self._truth.append(truth.to(torch.uint8))

    def score(self, ranks: Ranks) -> Score:
        """The score of what all ranks counted; a collective."""
        loss = ranks.total(self._loss.clone()).item()
        answers = f1(ranks.total(self._counts.clone()))
        logits, truth = (gather_rows(torch.cat(part), ranks) for part in (self._logits, self._truth))
        _check(len(logits))
        precision = mean_average_precision(logits, truth)
        return Score(
            loss=loss / len(logits),
            samples=len(logits),
            f1_micro=answers.micro,
            f1_macro=answers.macro,
            map=precision,
        )


def _check(samples: float) -> None:
    if not samples:
        raise BadInput("no test sample was evaluated, so there is no score", hint="check the test part of the data")
