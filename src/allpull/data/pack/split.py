"""Which shards are which rank's, where ranks need not read every file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allpull.data.pack_format import Header, PackError
from allpull.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one rank reads where ranks need not read every file: whole shards, and the records in them."""

    shards: range
    records: range


def split_shards(header: Header, rank: int, ranks: int) -> Split:
    """The whole shards of rank ``rank`` of ``ranks``, cut where records divide most evenly.

    Raises:
        PackError: there are fewer shards than ranks.
    """
    count = len(header.shards)
    if not 0 <= rank < ranks or count < ranks:
        raise PackError(
            f"{counted(count, 'shard')} cannot be split over {ranks} ranks",
            hint="pack again with a smaller --shard-size",
        )
    begins = [0, *np.cumsum([shard.records for shard in header.shards]).tolist()]
    cuts = list(_cuts(begins, ranks))
    shards = range(cuts[rank], cuts[rank + 1])
    return Split(shards=shards, records=range(begins[shards.start], begins[shards.stop]))


def _cuts(begins: Sequence[int], ranks: int) -> Iterator[int]:
    """Shards at which the ranks begin: nearest to an even share of records, at least one shard each."""
    shards, cut = len(begins) - 1, 0
    yield 0
    for rank in range(1, ranks):
        wanted = begins[-1] * rank / ranks
        allowed = range(cut + 1, shards - (ranks - rank) + 1)
        cut = min(allowed, key=lambda shard: abs(begins[shard] - wanted))
        yield cut
    yield shards
