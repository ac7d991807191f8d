"""The curves of a training: losses and accuracies are kept on each rank, reduced in batches, and reported as means."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from allpull import marks
from allpull.train.parallel.ranks import Ranks

POINTS_AT_ONCE = 10  # of the curve per reduction: a collective and, with a GPU, a wait of the host


ACCURACIES = ("train_top1", "train_top5")


class LossCurve:
    """Mean losses over the global batch, one per step, reported as means over ``every`` steps of an epoch.

    ``of_epoch`` are those of the current epoch from its first step on, including steps before a resume; ``this_run``
    are all of this run. Losses that are not reduced over ranks yet are in neither. Accuracies, where steps have them,
    are reported with the losses; those of steps before a resume are unknown, and left out of the means.
    """

    def __init__(self, ranks: Ranks, *, every: int) -> None:
        self.of_epoch: list[float] = []
        self.this_run: list[float] = []
        self._ranks = ranks
        self._every = every
        self._pending: list[Tensor] = []
        self._accuracies: list[list[float]] = []  # of the latest steps of ``of_epoch``
        self._reported = 0
        self._finite = True

    def add(self, share: Tensor, step: int) -> None:
        """Add this rank's share of the loss, or of [loss, top-1, top-5]; ``step`` steps are then done.

        Occasionally a collective. The numbers stay on their device until ``POINTS_AT_ONCE`` points of the curve can be
        reported.
        """
        self._pending.append(share.double().reshape(-1))
        if len(self._pending) >= POINTS_AT_ONCE * self._every:
            self.reduce(step)

    def reduce(self, step: int) -> None:
        """Reduce the pending losses over all ranks and report them; ``step`` steps are done. A collective."""
        if self._pending:
            rows = self._ranks.total(torch.stack(self._pending)).tolist()
            losses = [row[0] for row in rows]
            self.of_epoch += losses
            self.this_run += losses
            self._accuracies += [row[1:] for row in rows]
            self._pending.clear()
        while self._reported + self._every <= len(self.of_epoch):
            self._report(self._every, step)

    def end_epoch(self, step: int) -> None:
        """Report the rest of the epoch, which ended after ``step`` steps, and start a new one. A collective."""
        self.reduce(step)
        if self._reported < len(self.of_epoch):
            self._report(len(self.of_epoch) - self._reported, step)
        self.of_epoch, self._accuracies, self._reported = [], [], 0

    def _report(self, count: int, step: int) -> None:
        """Report the next point of the curve, the mean of ``count`` losses."""
        mean = sum(self.of_epoch[self._reported : self._reported + count]) / count
        unknown = len(self.of_epoch) - len(self._accuracies)
        known = self._accuracies[max(0, self._reported - unknown) : max(0, self._reported + count - unknown)]
        self._reported += count
        at_step = step - len(self.of_epoch) + self._reported
        marks.metric("train_loss", mean, at_step)
        for name, shares in zip(ACCURACIES, zip(*known, strict=True), strict=False):
            marks.metric(name, sum(shares) / len(shares), at_step)
        if self._finite and not math.isfinite(mean):
            self._finite = False
            marks.remark(f"train_loss is {mean} at step {at_step:,}: the training has diverged, or data are damaged")
