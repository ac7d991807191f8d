"""Which way between hosts is slow, where one is: a host's own link, what groups of hosts share, or all of them.

Each way gave a rate while something was sent on it (``machine.Way``). Ranks pass gradients on in a ring, so that all
ways carry as much, and a slow one keeps the others waiting but not busy. The ways are sorted by rate; where the slowest
of them, taken away, leave one host alone, that host's link is the slow one; where they leave groups, what is between
the groups is. Of all such cuts that which sets the rates furthest apart is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allpull.explain.evidence.machine import Machine, Way

APART = 2.0  # between the slowest fast way and the fastest slow one: rates of equal links differ by half of that
CARRIES = 0.1  # of what the way that sent most did: less is control, and its rate is one of small messages
LEAST = 0.05  # of a step: hosts take a few percent to hand on the last bucket, whatever the rate of their links
MIN_HOSTS = 3  # two hosts have one way between them, and nothing to compare it with


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The ways between hosts that carry gradients.

    ``groups``: the parts of the job between which ways are slow; empty where none stands out. ``faster``: how many
    times as fast the other ways are, 1 where none stands out. ``busy_share``: of the busiest way, the share of the
    time in which something was under way on it; None: not measured.
    """

    ways: tuple[Way, ...] = ()
    slow: tuple[Way, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    faster: float = 1.0
    busy_share: float | None = None

    @property
    def slow_host(self) -> str | None:
        """The host whose own link is slow; None: there is none."""
        alone = [group for group in self.groups if len(group) == 1]
        return alone[0][0] if len(alone) == 1 and len(self.groups) == 2 else None

    @property
    def usually_busy(self) -> float | None:
        """The share of the time in which the median way had something under way; None: not measured."""
        return min(1.0, float(np.median([way.busy_share for way in self.ways]))) if self.ways else None

    @property
    def rate(self) -> float | None:
        """What the median way gave, in bytes/s; None: not measured."""
        return float(np.median([way.bytes_per_s for way in self.ways])) if self.ways else None


def network_of(machine: Machine) -> Network:
    """The network that ``machine`` is seen to have."""
    most = max((way.sent_bytes for way in machine.ways), default=0)
    ways = tuple(way for way in machine.ways if way.sent_bytes >= CARRIES * most)
    if not ways:
        return Network()
    slow, groups, faster = _slow(ways, machine.host_names)
    busy = min(1.0, max(way.busy_share for way in ways))
    return Network(ways=ways, slow=slow, groups=groups, faster=faster, busy_share=busy)


def _slow(ways: Sequence[Way], hosts: Sequence[str]) -> tuple[tuple[Way, ...], tuple[tuple[str, ...], ...], float]:
    """The slow ways, the parts of the job that they are between, and how many times as fast the others are."""
    if len(hosts) < MIN_HOSTS:
        return (), (), 1.0
    ordered = sorted(ways, key=lambda way: way.bytes_per_s)
    best: tuple[tuple[Way, ...], tuple[tuple[str, ...], ...], float] = ((), (), 1.0)
    widest = APART
    for count in range(1, len(ordered)):
        slow, fast = ordered[:count], ordered[count:]
        apart = fast[0].bytes_per_s / max(slow[-1].bytes_per_s, 1e-9)
        if apart < widest:
            continue
        groups = _parts(fast, hosts)
        between = all(not any(way.source in part and way.target in part for part in groups) for way in slow)
        if len(groups) == 2 and between:  # more parts: no single thing is between them
            widest = apart
            usual = np.median([way.bytes_per_s for way in fast]) / np.median([way.bytes_per_s for way in slow])
            best = (tuple(slow), groups, float(usual))
    return best


def _parts(ways: Sequence[Way], hosts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The parts into which ``hosts`` fall where only ``ways`` join them, smallest first."""
    part = {host: {host} for host in hosts}
    for way in ways:
        if part[way.source] is not part[way.target]:
            joined = part[way.source] | part[way.target]
            for host in joined:
                part[host] = joined
    unique = {id(members): members for members in part.values()}
    ordered = [tuple(host for host in hosts if host in members) for members in unique.values()]
    return tuple(sorted(ordered, key=len))
