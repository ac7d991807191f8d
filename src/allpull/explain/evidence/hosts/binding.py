"""On which CPUs ranks may run: launchers and batch systems bind them to fewer than their host has, often by mistake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allpull.explain.candidate import count
from allpull.explain.evidence.hosts.machine import Machine
from allpull.schema.explained import Evidence

AFFINITY = "affinity of the ranks"
FEW = 0.5  # of the CPUs of a host: the second threads of its cores, or some that are kept for the system, are no loss
SMALL = 0.75  # of what other ranks have


@dataclass(frozen=True, slots=True, kw_only=True)
class Confined:
    """The ranks of ``host`` together may run on ``cpus`` of its CPUs only, of which it has ``of``."""

    host: str
    cpus: int
    of: int


def confined(machine: Machine) -> Confined | None:
    """The host of which the ranks may use the least part, where that is half of its CPUs or less; None: there is none.

    Where a quota of CPU time allows no more than these CPUs, the binding is not what limits the ranks.
    """
    found = []
    for host, of in machine.logical.items():
        ranks = machine.ranks_of(host)
        own = set().union(*(machine.bound.get(rank, ()) for rank in ranks))
        is_known = bool(ranks) and all(rank in machine.bound for rank in ranks)
        has_quota = machine.cpus is not None and machine.cpus.get(host, np.inf) < len(own)
        if is_known and not has_quota and len(own) <= FEW * of:
            found.append(Confined(host=host, cpus=len(own), of=of))
    return min(found, key=lambda one: one.cpus / one.of, default=None)


def confinement(few: Confined | None) -> tuple[Evidence, ...]:
    """The evidence that ranks are confined to a ``few`` CPUs; empty where they are not."""
    if few is None:
        return ()
    return (
        count(f"CPUs of {few.host} on which its ranks may run", few.cpus, AFFINITY),
        count(f"CPUs of {few.host}", few.of, "host record"),
    )


def has_fewer(machine: Machine, rank: int) -> bool:
    """Whether ``rank`` may use far fewer CPUs than the median other rank of its host, or of all if it is alone."""
    own, usual = _cpus_of(machine, rank), _usual_cpus(machine, rank)
    return own is not None and usual is not None and own < SMALL * usual


def share_no_cpus(machine: Machine, ranks: Sequence[int]) -> bool:
    """Whether each of ``ranks`` is bound to CPUs that no other rank of its host may use."""
    return all(_cpus_of(machine, rank) == len(machine.bound.get(rank, ())) for rank in ranks)


def fewer_cpus(machine: Machine, ranks: Sequence[int]) -> tuple[Evidence, ...]:
    """The evidence of those of ``ranks`` that ``has_fewer`` is true of."""
    return tuple(
        count(what, cpus, AFFINITY)
        for rank in ranks
        if has_fewer(machine, rank)
        for what, cpus in (
            (f"CPUs that rank {rank} may use, those shared with other ranks in part", _cpus_of(machine, rank) or 0.0),
            ("the same for the median of the others", _usual_cpus(machine, rank) or 0.0),
        )
    )


def _cpus_of(machine: Machine, rank: int) -> float | None:
    """How many CPUs ``rank`` may use, each shared with the others of its host that may; None: not known of all."""
    ranks = machine.ranks_of(machine.hosts[rank])
    if any(one not in machine.bound for one in ranks):
        return None
    users = Counter(cpu for one in ranks for cpu in machine.bound[one])
    return sum(1 / users[cpu] for cpu in machine.bound[rank])


def _usual_cpus(machine: Machine, rank: int) -> float | None:
    """The median over the other ranks of its host, or over all others where it is alone there; None: not known."""
    beside = [one for one in machine.ranks_of(machine.hosts[rank]) if one != rank]
    others = beside or [one for one in range(len(machine.hosts)) if one != rank]
    known = [cpus for one in others if (cpus := _cpus_of(machine, one)) is not None]
    return float(np.median(known)) if known else None
