"""The losses of a training: kept on each rank, added up over ranks now and then, told as a curve."""

from __future__ import annotations

import torch
from torch import Tensor

from allpull import marks
from allpull.train.ranks import Ranks


class Losses:
    """Mean losses over the global batch, a number a step.

    ``of_epoch`` are those of the epoch under way, from its first step on, also where it was begun elsewhere;
    ``here`` are all that were made here. What ranks have not told each other yet is in neither.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.of_epoch: list[float] = []
        self.here: list[float] = []
        self._ranks = ranks
        self._pending: list[Tensor] = []

    def add(self, share: Tensor) -> None:
        """This rank's share of a step's loss, a number that stays on its device."""
        self._pending.append(share.double())

    def share(self) -> None:
        """Add up over all ranks what came since the last time: one reduction, not one a step. A collective."""
        if self._pending:
            losses = self._ranks.total(torch.stack(self._pending)).tolist()
            self.of_epoch += losses
            self.here += losses
            self._pending.clear()

    def tell(self, step: int, *, every: int) -> None:
        """Tell those of the epoch that ended with ``step`` steps done, as means over ``every`` steps; begin anew."""
        first = step - len(self.of_epoch)
        for start in range(0, len(self.of_epoch), every):
            some = self.of_epoch[start : start + every]
            marks.metric("train_loss", sum(some) / len(some), first + start + len(some))
        self.of_epoch = []
