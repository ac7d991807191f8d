"""Split the records of a pack over ranks and steps, by global batches or by files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allpull.data.datasets.dataset import Labels
from allpull.data.loader.bad_samples import SKIPPED
from allpull.data.loader.batches import Batch, Plan
from allpull.data.loader.order import Indices, block_order, rank_slice, steps_per_epoch
from allpull.data.loader.resize import Array
from allpull.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """One rank's records in one step; ``counted`` of them count, of ``global_samples`` on all ranks.

    A rank without any borrows one that does not count (see ``batches.Batch``).
    """

    records: Indices
    counted: int
    global_samples: int


def assembled(share: RankShare, images: Array, loaded: Indices, labels_of: Callable[[Indices], Labels]) -> Batch:
    """The batch of ``share`` from ``images`` [n, …], compacted in place, of which record ``loaded`` [n] or ``SKIPPED``.

    It has at least one row, which does not count if nothing was loaded.
    """
    good = loaded != SKIPPED
    if not good.all():
        images[: good.sum()] = images[: len(loaded)][good]
        loaded = loaded[good] if good.any() else np.array([share.records[0]])
    return Batch(
        images=images[: len(loaded)],
        labels=labels_of(loaded),
        samples=int(good.sum()) if share.counted else 0,
        global_samples=share.global_samples,
    )


def limit_records(parts: Sequence[range], limit: int) -> list[range]:
    """The first records of each part, ``limit`` in all, in proportion to its length; 0: all.

    >>> limit_records([range(0, 60), range(60, 100)], 10)
    [range(0, 6), range(60, 64)]

    Raises:
        BadInput: a part, and so a rank, would be empty.
    """
    total = sum(map(len, parts))
    if not 0 < limit < total:
        return list(parts)
    ends = [sum(map(len, parts[: number + 1])) * limit // total for number in range(len(parts))]
    cut = [part[: end - begin] for part, begin, end in zip(parts, [0, *ends], ends, strict=False)]
    if not all(cut):
        raise BadInput(
            f"data.limit: {limit} samples leave some of {len(parts)} ranks without samples of their files",
            hint="use more samples, or omit data.by_files",
        )
    return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How the records of a pack are split over ranks.

    ``parts``: one range for all ranks, split by global batches, which are then the same for any number of ranks; or,
    if ranks have files of their own, one range per rank. ``block`` and ``mixed``: see ``order.block_order``.
    """

    plan: Plan
    parts: Sequence[range]
    block: int = 1
    mixed: int = 1

    @property
    def own(self) -> range:
        """The records that this rank may use."""
        return self.parts[self.plan.rank if len(self.parts) > 1 else 0]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return steps_per_epoch(sum(map(len, self.parts)), self.plan.global_batch)

    @property
    def largest(self) -> int:
        """The most records of one rank in one step."""
        if len(self.parts) == 1:
            return -(-min(self.plan.global_batch, len(self.own)) // self.plan.ranks)
        return max(1, -(-len(self.own) // self.steps))

    def order(self, epoch: int) -> Indices:
        """The records of ``own`` in the order of ``epoch``."""
        return self.own.start + block_order(len(self.own), self.plan.seed, epoch, block=self.block, mixed=self.mixed)

    def of(self, epoch: int, first_step: int = 0) -> Iterator[RankShare]:
        """This rank's share of each step of ``epoch``, from ``first_step`` on."""
        order = self.order(epoch)
        for step in range(first_step, self.steps):
            yield self._by_files(order, step) if len(self.parts) > 1 else self._by_batch(order, step)

    def _by_batch(self, order: Indices, step: int) -> RankShare:
        plan = self.plan
        global_indices = order[step * plan.global_batch : (step + 1) * plan.global_batch]
        own = rank_slice(global_indices, plan.rank, plan.ranks)
        return RankShare(
            records=own if len(own) else global_indices[:1], counted=len(own), global_samples=len(global_indices)
        )

    def _by_files(self, order: Indices, step: int) -> RankShare:
        """Each rank's records spread over all steps, so that ranks with fewer do not finish earlier."""
        ranges = [(len(part) * step // self.steps, len(part) * (step + 1) // self.steps) for part in self.parts]
        start, stop = ranges[self.plan.rank]
        own = order[start:stop]
        total = sum(stop - start for start, stop in ranges)
        return RankShare(records=own if len(own) else order[:1], counted=len(own), global_samples=total)
