"""NCCL sends gradients between hosts through a virtual or a slow network interface.

What it is
    NCCL takes the first interface that fits `NCCL_SOCKET_IFNAME`, or the first of the host. That may be a bridge of
    containers, a tunnel, or the port for administration.

How it is found
    By the log of NCCL (`NCCL_DEBUG=INFO`): the interface that channels `via NET/Socket` use is a bridge, a tunnel or
    the loopback by its name; or it has at most a quarter of the rate of another interface of the same host, where both
    report their rates and all hosts have one that is so much faster.

What it costs
    How fast the other interface would be was not measured, so it is advice without a price; `network-bound` prices what
    the exchange costs now.

What to do
    `export NCCL_SOCKET_IFNAME=eth1` with the name of the fast interface (`=eth1` for exactly that one), or exclude the
    wrong one: `NCCL_SOCKET_IFNAME=^docker0,lo`.

When it is wrong
    Where the faster interface belongs to another network, such as that of the storage, and does not reach the other
    hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

from allpull.explain.candidate import Candidate, rate
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.hosts.transports import SOCKET, Transports, is_virtual
from allpull.explain.remedy import Action, sentence
from allpull.explain.remedy_text import quoted, variable
from allpull.schema.explained import Evidence
from allpull.schema.host import Nic

SLOWER = 4  # times: ports of one host often differ by 2, and both may be in use


def find(facts: Facts) -> list[Candidate]:
    """Advice, where sockets use such an interface."""
    nccl = facts.transports
    ranks = [rank for rank, networks in nccl.between_hosts.items() if SOCKET in networks]
    used = {rank: nccl.socket_interfaces(rank) for rank in ranks}
    virtual = tuple(sorted(rank for rank in ranks if used[rank] and all(is_virtual(name) for name in used[rank])))
    slow = tuple(sorted(rank for rank in ranks if _faster(nccl, rank) is not None))
    if not virtual and len(slow) < max(1, len(ranks)):
        return []
    chosen = virtual or slow
    names = sorted({name for rank in chosen for name in used[rank]})
    what = "a bridge, a tunnel or the loopback" if virtual else "a slow one of several interfaces"
    return [
        Candidate(
            rule="nccl-interface",
            kind="advice",
            title=f"NCCL sends between hosts through {', '.join(names)}, {what}",
            remedy=_remedy(facts, names, () if virtual else chosen),
            evidence=_rates(nccl, chosen[0]),
            ranks=() if len(chosen) == facts.window.ranks else chosen,
        )
    ]


def _faster(nccl: Transports, rank: int) -> Nic | None:
    """The fastest interface of the rank's host, where it is that much faster than all that its sockets use."""
    nics = [nic for nic in nccl.nics.get(nccl.hosts[rank], ()) if "/" not in nic.name and not is_virtual(nic.name)]
    rates = {nic.name: nic.bits_per_s for nic in nics}
    used = [rates.get(name) for name in nccl.socket_interfaces(rank)]
    known = [bits_per_s for bits_per_s in used if bits_per_s]
    if not known or len(known) < len(used):
        return None
    fastest = max(nics, key=lambda nic: nic.bits_per_s or 0)
    return fastest if (fastest.bits_per_s or 0) >= SLOWER * max(known) else None


def _remedy(facts: Facts, names: Sequence[str], slow: Sequence[int]) -> Action:
    """Another interface than ``names``: the fastest of the hosts of the ``slow`` ranks."""
    better = sorted({nic.name for rank in slow if (nic := _faster(facts.transports, rank)) is not None})
    if better:
        return variable(facts.start, "NCCL_SOCKET_IFNAME", quoted(better))
    other = variable(facts.start, "NCCL_SOCKET_IFNAME", f"^{quoted(names)}")
    return sentence(other, ", or name the interface that leads to the other hosts")


def _rates(nccl: Transports, rank: int) -> tuple[Evidence, ...]:
    """The rates of the interfaces of one rank's host."""
    used = nccl.socket_interfaces(rank)
    return tuple(
        rate(f"rate of {nic.name}{', which is used' if nic.name in used else ''}", nic.bits_per_s / 8, "record of host")
        for nic in nccl.nics.get(nccl.hosts[rank], ())
        if nic.bits_per_s is not None
    )
