"""Whether workers of a loader repeat each other's samples, as each of them has the whole of an `IterableDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allpull.analyse.replicas import DIGITS
from allpull.rundir.read.run import RunData
from allpull.schema.gap import Gap, named_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class IterableSamples:
    """Samples of an `IterableDataset`, which a loader with at most ``workers`` workers gives each rank; 0: it has none.

    ``repeating``: the ranks that train on each batch as often as their loader has workers; these have ``workers`` then.
    """

    workers: int
    repeating: tuple[int, ...]
    ranks: int

    @property
    def may_repeat(self) -> bool:
        """Whether more workers would, or may, give the same samples: one alone cannot show what several do."""
        return self.workers <= 1 or bool(self.repeating)

    @property
    def who(self) -> str:
        """The ranks whose workers repeat samples, to go on with."""
        if len(self.repeating) < self.ranks:
            return named_ranks(self.repeating, len(self.repeating))
        return {1: "the rank", 2: "both ranks"}.get(self.ranks, f"all {self.ranks:,} ranks")


def iterable_samples(run: RunData) -> IterableSamples | None:
    """The samples of ``run`` if they are of an `IterableDataset`; None: they are not, or it is not known."""
    workers, repeating = {}, []
    for rank, log in sorted(run.events.items()):
        first = log.first_batches[0] if log.first_batches else None
        if first is not None and first.iterable_workers is not None:
            workers[rank] = first.iterable_workers
            if _repeats(first.digests, first.iterable_workers):
                repeating.append(rank)
    if not workers:
        return None
    most = max(workers[rank] for rank in repeating or workers)
    return IterableSamples(workers=most, repeating=tuple(repeating), ranks=run.record.ranks)


def _repeats(digests: str, workers: int) -> bool:
    """Whether each of several ``workers`` gave the same batch before the next batch of any.

    A loader takes batches from its workers in turn.

    >>> _repeats("aaaaaaaa" * 2 + "bbbbbbbb" * 2, 2), _repeats("aaaaaaaa" + "bbbbbbbb" + "aaaaaaaa", 2)
    (True, False)
    """
    batches = [digests[start : start + DIGITS] for start in range(0, len(digests), DIGITS)]
    groups = [set(batches[start : start + workers]) for start in range(0, len(batches), max(1, workers))]
    return workers > 1 and len(groups) > 1 and all(len(one) == 1 for one in groups) and groups[0] != groups[1]


def gaps_of_iterable_samples(found: IterableSamples | None) -> Iterator[Gap]:
    """What samples/s counts several times."""
    if found is not None and found.repeating:
        text = (
            f"{found.workers:,} loader workers of {found.who} give the same samples: samples/s, steps and epochs count "
            "each of them as often"
        )
        yield Gap(kind="repeated samples", text=text, ranks=found.repeating)
