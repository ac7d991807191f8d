"""Whether ranks train on the same samples, by the digests of the first batches that each wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allpull.analyse.replicas import DIGITS
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.schema.gap import Gap, named_ranks

FEWEST = 3  # batches that have to be equal


@dataclass(frozen=True, slots=True, kw_only=True)
class SameSamples:
    """Ranks whose first ``batches`` batches were equal, in ``groups`` of two and more; of ``ranks`` in all.

    ``averaged``: the gradients of all ranks are averaged, so that none of them is needed twice. Else these may be the
    parts of one model.
    """

    groups: tuple[tuple[int, ...], ...]
    batches: int
    ranks: int
    averaged: bool

    @property
    def who(self) -> str:
        """The ranks that train on the same samples, to begin a sentence with."""
        first = self.groups[0]
        if len(first) == self.ranks:
            return "both ranks" if self.ranks == 2 else f"all {self.ranks:,} ranks"
        if len(self.groups) == 1:
            return named_ranks(first, len(first))
        return f"{len(self.groups):,} groups of ranks, such as {named_ranks(first, len(first))},"


def same_samples(run: RunData) -> SameSamples | None:
    """The ranks of ``run`` that train on the same samples; None: none do, or it is not known.

    Batches that are equal in every step are made for a benchmark, and no samples: they are not compared.
    """
    alike: dict[str, list[int]] = {}
    for rank, log in sorted(run.events.items()):
        digests = log.first_batches[0].digests if log.first_batches else ""
        if len(digests) >= FEWEST * DIGITS and digests != digests[:DIGITS] * (len(digests) // DIGITS):
            alike.setdefault(digests, []).append(rank)
    found = {digests: tuple(ranks) for digests, ranks in alike.items() if len(ranks) > 1}
    if not found:
        return None
    ranks = run.record.ranks
    return SameSamples(
        groups=tuple(found.values()),
        batches=min(map(len, found)) // DIGITS,
        ranks=ranks,
        averaged=any(_averages(log, ranks) for log in run.events.values()),
    )


def _averages(log: EventLog, ranks: int) -> bool:
    """Whether DDP or FSDP averages the gradients of all ``ranks`` ranks."""
    scattered = (
        one.group_ranks
        for one in log.collective_kinds
        if one.op.startswith("reduce_scatter") and one.inside == "backward"
    )
    return ranks in scattered or any(one.group_ranks == ranks for one in log.data_parallel)


def gaps_of_same_samples(found: SameSamples | None) -> Iterator[Gap]:
    """What samples/s counts several times, where it is known or may be."""
    if found is None:
        return
    times = len(found.groups[0])
    text = f"{found.who} train on the same samples: samples/s counts each of them {times:,} times"
    if not found.averaged:
        text += "; parts of one model do that, copies of one should train on different ones"
    yield Gap(kind="same samples", text=text, ranks=tuple(rank for group in found.groups for rank in group))
