"""Many ranks with one fault are one finding: local rank 0 of every host, not a page with sixty-four of them.

Ranks are alike that are late in the same phase, and by no less than half of what the latest of them is. Two are named
each by itself, as two hosts may be slow for two reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.outliers import Outlier
from allpull.schema.results import Interval
from allpull.units import show_time

MANY = 3  # ranks: fewer are separate findings
ALIKE = 0.5  # of the latest: a rank that is less late has another fault
NAMED = 6  # ranks by number; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks with one fault, the latest first: one, or ``MANY`` and more."""

    members: tuple[Outlier, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their numbers in order."""
        return tuple(sorted(one.rank for one in self.members))

    @property
    def size(self) -> Interval:
        """By how much the latest of them is late, s a step."""
        return self.members[0].size

    @property
    def steady(self) -> bool:
        """Whether they are late on the whole, and not only now and then."""
        return self.members[0].steady

    def span(self) -> str:
        """By how much they are late, as a title says it."""
        least, most = (show_time(self.members[place].size.value) for place in (-1, 0))
        return most if least == most else f"{least} to {most}"


def groups(outliers: Sequence[Outlier], fault_of: Callable[[Outlier], Hashable]) -> tuple[Group, ...]:
    """``outliers``, sorted by size, in groups of one ``fault_of`` each; the group with the latest rank first."""
    left = list(outliers)
    made: list[Group] = []
    while left:
        latest = left[0]
        like = [
            one for one in left if fault_of(one) == fault_of(latest) and one.size.value >= ALIKE * latest.size.value
        ]
        members = tuple(like) if len(like) >= MANY else (latest,)
        made.append(Group(members=members))
        left = [one for one in left if one not in members]
    return tuple(made)


def named(ranks: Sequence[int], machine: Machine) -> str:
    """``ranks`` to begin a sentence: by number, or by their local rank where it is the same on all their hosts.

    >>> named([0, 2, 4], Machine(hosts=("a", "a", "b", "b", "c", "c")))
    '3 ranks, local rank 0 of every host,'
    """
    listed = ", ".join(str(rank) for rank in ranks[:NAMED])
    if len(ranks) > NAMED:
        listed = f"{listed} and {len(ranks) - NAMED:,} more"
    place = _place(ranks, machine)
    return f"Ranks {listed}" if place is None else f"{len(ranks):,} ranks, {place},"


def _place(ranks: Sequence[int], machine: Machine) -> str | None:
    """The local rank that all of ``ranks`` have on their hosts; None: they have none in common, or one per host."""
    hosts = [machine.hosts[rank] for rank in ranks]
    locals_ = {machine.ranks_of(host).index(rank) for rank, host in zip(ranks, hosts, strict=True)}
    if not all(hosts) or len(locals_) != 1 or max(len(machine.ranks_of(host)) for host in hosts) < 2:
        return None
    of = "every host" if len(set(hosts)) == len(machine.host_names) else f"{len(set(hosts)):,} hosts"
    return f"local rank {locals_.pop()} of {of}"
