"""How NCCL sends gradients, rank by rank, from what it logged."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allpull.rundir.read.nccl_log import ProcessTransports
from allpull.rundir.read.run import RunData
from allpull.schema.host import Nic

SOCKET = "Socket"
OFF = ("0", "", "false")
VIRTUAL = ("docker*", "br-*", "virbr*", "veth*", "lo", "tun*", "tap*", "tailscale*", "wg*", "zt*", "cni*", "flannel*")
"""Names of interfaces that do not lead to another host, or only through a tunnel."""
RDMA = ("mlx*", "hfi*", "efa*", "rdmap*", "bnxt_re*", "irdma*")
"""Names of devices that NCCL can send through without sockets, some of them by a plug-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transports:
    """What NCCL said in each rank: rank → its process; ranks that logged nothing are absent.

    ``nics``: host → its interfaces that are up, and active ports of RDMA devices, as ``device/port``. ``hosts``: of
    each rank.
    """

    ranks: Mapping[int, ProcessTransports] = field(default_factory=dict)
    nics: Mapping[str, Sequence[Nic]] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()

    @property
    def between_hosts(self) -> dict[int, set[str]]:
        """Rank → the networks by which it sends to other ranks; empty where all ranks are on one host."""
        if len(set(self.hosts)) < 2:
            return {}
        by_rank = {
            rank: {one.network for one in log.transports if one.kind == "NET" and one.network is not None}
            for rank, log in self.ranks.items()
        }
        return {rank: networks for rank, networks in by_rank.items() if networks}

    def rdma(self, host: str) -> list[Nic]:
        """The active ports of ``host`` that need no sockets."""
        return [nic for nic in self.nics.get(host, ()) if "/" in nic.name and _is_named(nic.name, RDMA)]

    def socket_interfaces(self, rank: int) -> list[str]:
        """The interfaces through which ``rank`` sends by sockets, by their names in the log."""
        log = self.ranks[rank]
        used = {one.interface for one in log.transports if one.kind == "NET" and one.network == SOCKET}
        return sorted({log.interfaces[number] for number in used if number is not None and number in log.interfaces})

    def is_set(self, variable: str) -> bool:
        """Whether the log of any rank names ``variable`` as set to something else than off."""
        values = [log.settings.get(variable) for log in self.ranks.values()]
        return any(value is not None and value.lower() not in OFF for value in values)


def is_virtual(interface: str) -> bool:
    """Whether ``interface`` is a bridge, a tunnel or the loopback."""
    return _is_named(interface, VIRTUAL)


def transports_of(run: RunData, processes: Sequence[ProcessTransports]) -> Transports:
    """``processes`` as ranks of ``run``: by their number and, where two hosts have the same one, by their host."""
    by_pid: dict[int, list[ProcessTransports]] = {}
    for one in processes:
        by_pid.setdefault(one.pid, []).append(one)
    ranks = {}
    pids = [header.pid for header in run.headers.values()]
    for rank, header in run.headers.items():
        found = by_pid.get(header.pid, [])
        on_host = [one for one in found if _same_host(one.host, header.host)]
        if len(on_host) == 1:
            ranks[rank] = on_host[0]
        elif len(found) == 1 and pids.count(header.pid) == 1:
            ranks[rank] = found[0]
    hosts = tuple(run.headers[rank].host if rank in run.headers else "" for rank in range(run.record.ranks))
    return Transports(ranks=ranks, nics={host.host: host.nics for host in run.hosts}, hosts=hosts)


def _same_host(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
