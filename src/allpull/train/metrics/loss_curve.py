"""The losses of a training: kept on each rank, added up over ranks now and then, told as a curve."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from allpull import marks
from allpull.train.parallel.ranks import Ranks

POINTS_AT_ONCE = 10  # of the curve: a collective, and with a GPU a wait of the host, for each so many


class Losses:
    """Mean losses over the global batch, a number a step, told as means over ``every`` steps of an epoch.

    ``of_epoch`` are those of the epoch under way, from its first step on, also where it was begun elsewhere;
    ``here`` are all that were made here. What ranks have not told each other yet is in neither.
    """

    def __init__(self, ranks: Ranks, *, every: int) -> None:
        self.of_epoch: list[float] = []
        self.here: list[float] = []
        self._ranks = ranks
        self._every = every
        self._pending: list[Tensor] = []
        self._told = 0
        self._finite = True

    def add(self, share: Tensor, step: int) -> None:
        """This rank's share of the loss of a step, with which ``step`` are done; now and then a collective.

        It is a number that stays on its device until ``POINTS_AT_ONCE`` points of the curve can be told.
        """
        self._pending.append(share.double())
        if len(self._pending) >= POINTS_AT_ONCE * self._every:
            self.share(step)

    def share(self, step: int) -> None:
        """Add up over all ranks what came since the last time, and tell it, with ``step`` steps done. A collective."""
        if self._pending:
            losses = self._ranks.total(torch.stack(self._pending)).tolist()
            self.of_epoch += losses
            self.here += losses
            self._pending.clear()
        while self._told + self._every <= len(self.of_epoch):
            self._tell(self._every, step)

    def end_epoch(self, step: int) -> None:
        """Tell the rest of the epoch that ended with ``step`` steps done, and begin anew. A collective."""
        self.share(step)
        if self._told < len(self.of_epoch):
            self._tell(len(self.of_epoch) - self._told, step)
        self.of_epoch, self._told = [], 0

    def _tell(self, count: int, step: int) -> None:
        """Tell the next point of the curve, the mean of ``count`` losses."""
        mean = sum(self.of_epoch[self._told : self._told + count]) / count
        self._told += count
        until = step - len(self.of_epoch) + self._told
        marks.metric("train_loss", mean, until)
        if self._finite and not math.isfinite(mean):
            self._finite = False
            marks.remark(f"train_loss is {mean} at step {until:,}: the training has diverged, or its data are damaged")
