"""Which records are a rank's at each step of an epoch, with and without files of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allpull.data.loader.batches import Plan
from allpull.data.loader.order import Indices, block_order, rank_slice, steps_per_epoch
from allpull.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's records of one step; ``counted`` of them count, of ``global_samples`` on all ranks.

    A rank that has none borrows one that does not count (see ``batches.Batch``).
    """

    records: Indices
    counted: int
    global_samples: int


def limited(parts: Sequence[range], limit: int) -> list[range]:
    """The first records of each part, ``limit`` in all, in proportion to its length; 0: all.

    >>> limited([range(0, 60), range(60, 100)], 10)
    [range(0, 6), range(60, 64)]

    Raises:
        BadInput: a part would be empty, and its rank have nothing to train on.
    """
    total = sum(map(len, parts))
    if not 0 < limit < total:
        return list(parts)
    ends = [sum(map(len, parts[: number + 1])) * limit // total for number in range(len(parts))]
    cut = [part[: end - begin] for part, begin, end in zip(parts, [0, *ends], ends, strict=False)]
    if not all(cut):
        raise BadInput(
            f"data.limit: {limit} samples leave some of {len(parts)} ranks none of their files",
            hint="use more samples, or leave data.by_files out",
        )
    return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How the records of a pack are dealt out.

    ``parts``: one range for all ranks, dealt out by global batches, which are then the same for any number of ranks;
    or, where ranks have files of their own, one range a rank. ``block`` and ``mixed``: see ``shuffle``.
    """

    plan: Plan
    parts: Sequence[range]
    block: int = 1
    mixed: int = 1

    @property
    def own(self) -> range:
        """The records that this rank may ask for."""
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

    def of(self, epoch: int, first_step: int = 0) -> Iterator[Share]:
        """This rank's share of each step of ``epoch``, from ``first_step`` on."""
        order = self.order(epoch)
        for step in range(first_step, self.steps):
            yield self._dealt(order, step) if len(self.parts) > 1 else self._cut(order, step)

    def _cut(self, order: Indices, step: int) -> Share:
        plan = self.plan
        whole = order[step * plan.global_batch : (step + 1) * plan.global_batch]
        own = rank_slice(whole, plan.rank, plan.ranks)
        return Share(records=own if len(own) else whole[:1], counted=len(own), global_samples=len(whole))

    def _dealt(self, order: Indices, step: int) -> Share:
        """Each rank's records spread over all steps, so that ranks with fewer do not end before the others."""
        begins = [(len(part) * step // self.steps, len(part) * (step + 1) // self.steps) for part in self.parts]
        start, stop = begins[self.plan.rank]
        own = order[start:stop]
        total = sum(stop - start for start, stop in begins)
        return Share(records=own if len(own) else order[:1], counted=len(own), global_samples=total)
