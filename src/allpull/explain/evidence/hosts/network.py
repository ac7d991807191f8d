"""Which connections between hosts are slow: those of one host's link, those between groups of hosts, or all.

Each connection has a rate while it sent data (``machine.Connection``). Ranks exchange gradients in a ring, so that all
connections carry as much, and a slow one keeps the others waiting but not busy. Connections are sorted by rate. If
removing the slowest ones isolates one host, that host's link is slow; if it leaves groups, the network between the
groups is. Of all such cuts the one with the largest ratio of rates is chosen.

Only connections that carry the gradients count. A host has to send 2(H−1)/H times the gradients, whatever the algorithm
(Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69, with hosts as processes). What sends less is the store of
torchrun, the bootstrap of NCCL, or control traffic beside InfiniBand, and says nothing about the network of gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allpull.explain.evidence.hosts.machine import Connection, Machine
from allpull.replay.window import Window

APART = 2.0  # ratio of the slowest fast connection to the fastest slow one: rates of equal links differ by half of that
CARRIES = 0.1  # of the connection that sent most: less is control traffic, with the rate of small messages
GOOD_HALF = 0.45  # of what a host has to send: gradients that are sent in 16 bits take half of it
LEAST = 0.05  # of a step: hosts take a few percent to forward the last bucket, whatever the rate of their links
MIN_HOSTS = 3  # two hosts have one connection, and none to compare it with


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The connections between hosts that carry gradients.

    ``groups``: the parts of the job between which connections are slow; empty where none stands out. ``faster``: how
    many times as fast the other connections are, 1 where none stands out. ``busy_share``: of the busiest connection,
    the share of the time in which it had data in flight; None: not measured. ``carries_other``: there are connections
    between hosts, but none of them carries the gradients.
    """

    connections: tuple[Connection, ...] = ()
    slow: tuple[Connection, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    faster: float = 1.0
    busy_share: float | None = None
    carries_other: bool = False

    @property
    def slow_host(self) -> str | None:
        """The host whose own link is slow; None: there is none."""
        alone = [group for group in self.groups if len(group) == 1]
        return alone[0][0] if len(alone) == 1 and len(self.groups) == 2 else None

    @property
    def usually_busy(self) -> float | None:
        """The share of the time in which the median connection had data in flight; None: not measured."""
        return min(1.0, float(np.median([one.busy_share for one in self.connections]))) if self.connections else None

    @property
    def rate(self) -> float | None:
        """The rate of the median connection, in bytes/s; None: not measured."""
        return float(np.median([one.bytes_per_s for one in self.connections])) if self.connections else None


def network_of(machine: Machine, window: Window | None = None) -> Network:
    """The network of ``machine``, as its connections show it.

    ``window``: connections of hosts that sent less than a good half of its gradients are left out; None, or a window
    whose buckets have no known size: no connection is left out because of that.
    """
    carrying = _carrying(machine, None if window is None else _has_to_send(window, len(machine.host_names)))
    most = max((one.sent_bytes for one in carrying), default=0)
    connections = tuple(one for one in carrying if one.sent_bytes >= CARRIES * most)
    if not connections:
        return Network(carries_other=bool(machine.connections))
    slow, groups, faster = _slow(connections, machine.host_names)
    busy = min(1.0, max(one.busy_share for one in connections))
    return Network(connections=connections, slow=slow, groups=groups, faster=faster, busy_share=busy)


def _has_to_send(window: Window, hosts: int) -> float | None:
    """Bytes/s that each host has to send to reduce the gradients of ``window``; None: their size is not known."""
    lane = window.reductions
    if lane is None or lane.size_bytes is None or not window.measured_s > 0:
        return None
    reduced_bytes = float(lane.size_bytes.sum()) * len(lane.seconds)
    return 2 * (hosts - 1) / hosts * reduced_bytes / window.measured_s


def _carrying(machine: Machine, has_to_send: float | None) -> list[Connection]:
    """The connections from hosts that sent a good half of ``has_to_send``, bytes/s."""
    if has_to_send is None:
        return list(machine.connections)
    sent: defaultdict[str, float] = defaultdict(float)
    for one in machine.connections:
        sent[one.source] += one.sent_bytes / one.seconds
    return [one for one in machine.connections if sent[one.source] >= GOOD_HALF * has_to_send]


def _slow(
    connections: Sequence[Connection], hosts: Sequence[str]
) -> tuple[tuple[Connection, ...], tuple[tuple[str, ...], ...], float]:
    """The slow connections, the parts of the job between them, and how many times as fast the others are."""
    if len(hosts) < MIN_HOSTS:
        return (), (), 1.0
    ordered = sorted(connections, key=lambda one: one.bytes_per_s)
    best: tuple[tuple[Connection, ...], tuple[tuple[str, ...], ...], float] = ((), (), 1.0)
    widest = APART
    for count in range(1, len(ordered)):
        slow, fast = ordered[:count], ordered[count:]
        apart = fast[0].bytes_per_s / max(slow[-1].bytes_per_s, 1e-9)
        if apart < widest:
            continue
        groups = _parts(fast, hosts)
        between = all(not any(one.source in part and one.target in part for part in groups) for one in slow)
        if len(groups) == 2 and between:  # more parts: no single link is between them
            widest = apart
            usual = np.median([one.bytes_per_s for one in fast]) / np.median([one.bytes_per_s for one in slow])
            best = (tuple(slow), groups, float(usual))
    return best


def _parts(connections: Sequence[Connection], hosts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The parts into which ``hosts`` fall if only ``connections`` connect them, smallest first."""
    part = {host: {host} for host in hosts}
    for one in connections:
        if part[one.source] is not part[one.target]:
            joined = part[one.source] | part[one.target]
            for host in joined:
                part[host] = joined
    unique = {id(members): members for members in part.values()}
    ordered = [tuple(host for host in hosts if host in members) for members in unique.values()]
    return tuple(sorted(ordered, key=len))
