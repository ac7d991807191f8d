"""Compare the digests of parameters and buffers that ranks wrote, which are equal where replicas agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from allpull.rundir.read.events import EventLog
from allpull.schema.digest_events import Replica, ReplicaTensors
from allpull.schema.gap import Gap, named_ranks
from allpull.schema.replicas import ReplicaDifference, Replicas

DIGITS = 8  # of a digest
Kind = Literal["parameters", "buffers"]
Checks = dict[int, dict[int, Replica]]


def replicas(events: Mapping[int, EventLog]) -> Replicas | None:
    """Which ranks differ from the others, from which step on, and in which tensor first; None: nothing was digested.

    At each step that several ranks digested, a tensor should have one digest. Where it has several, most ranks are
    right, among equals those with the lowest rank: the others differ. A rank is named once.
    """
    names = {rank: log.replica_tensors for rank, log in events.items() if log.replica_tensors}
    if not names:
        return None
    at_step: Checks = {}
    for rank in sorted(names):
        for one in events[rank].replicas:
            at_step.setdefault(one.step, {})[rank] = one
    shared = {step: of_ranks for step, of_ranks in sorted(at_step.items()) if len(of_ranks) > 1}
    return Replicas(
        checked=len(shared),
        ranks=len(names),
        sharded=max(one.sharded for of_rank in names.values() for one in of_rank),
        differ=list(_differences("parameters", shared, names)),
        buffers_differ=list(_differences("buffers", shared, names)),
    )


def _differences(
    kind: Kind, checks: Checks, names: Mapping[int, Sequence[ReplicaTensors]]
) -> Iterator[ReplicaDifference]:
    """The first difference of each rank that differs."""
    known: set[int] = set()
    for step, of_ranks in checks.items():
        if len({getattr(one, kind) for one in of_ranks.values()}) == 1:
            continue  # equal names have equal digests, in equal places
        tensors = {rank: _digests(kind, one, names[rank]) for rank, one in of_ranks.items()}
        wrong: dict[int, list[str]] = {}
        for name in dict.fromkeys(name for digests in tensors.values() for name in digests):
            values = {rank: digests[name] for rank, digests in tensors.items() if name in digests}
            most, _ = Counter(values.values()).most_common(1)[0]  # among equals the one met first
            for rank in [rank for rank, value in values.items() if value != most]:
                wrong.setdefault(rank, []).append(name)
        for rank in sorted(wrong.keys() - known):
            known.add(rank)
            yield ReplicaDifference(rank=rank, step=step, tensor=wrong[rank][0], tensors=len(wrong[rank]))


def _digests(kind: Kind, replica: Replica, names: Sequence[ReplicaTensors]) -> dict[str, str]:
    """Tensor → its digest; empty where the names of that time are not known."""
    of_time = [one for one in names if one.step <= replica.step]
    tensors: list[str] = getattr(of_time[-1], kind) if of_time else []
    text: str = getattr(replica, kind)
    cut = [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
    return dict(zip(tensors, cut, strict=True)) if len(tensors) == len(cut) else {}


def gaps_of_replicas(found: Replicas | None) -> Iterator[Gap]:
    """What users should know of replicas: that they differ, or could not be compared."""
    if found is None:
        return
    if found.differ:
        first = min(found.differ, key=lambda one: (one.step, one.rank))
        ranks = tuple(one.rank for one in found.differ)
        others = "rank 0" if found.ranks == 2 and ranks == (1,) else "most ranks"
        yield Gap(
            kind="replicas",
            ranks=ranks,
            text=f"the replicas differ: {named_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} other parameters "
            f"than {others}, first seen at step {first.step:,} in {first.tensor} of rank {first.rank}; were they "
            "broadcast at the start, and are all gradients exchanged?",
        )
    if found.sharded:
        yield Gap(
            kind="replicas",
            text=f"{found.sharded:,} parameters are sharded over ranks: they are no replicas, and were not compared",
        )
    if not found.checked and found.ranks > 1:
        yield Gap(kind="replicas", text="no step was digested by two ranks: their replicas were not compared")
