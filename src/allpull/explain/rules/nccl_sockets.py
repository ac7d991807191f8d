"""NCCL sends gradients between hosts through TCP sockets, although the hosts have InfiniBand or RDMA.

What it is
    Through sockets each byte is copied by CPUs, and on InfiniBand passes through IP emulation. The same card without
    sockets is several times as fast. NCCL falls back without an error where it is told to (`NCCL_IB_DISABLE=1`), where
    a container lacks the devices or `libibverbs`, or where the plug-in of a cloud's network is not installed.

How it is found
    By the log of NCCL (`NCCL_DEBUG=INFO`, in the logs of the run or in `NCCL_DEBUG_FILE`): ranks send `via NET/Socket`
    between hosts that have active ports of RDMA devices, by the records of hosts, at least as fast as the interface
    that the sockets use.

What it costs
    How fast the devices would be was not measured, so it is advice without a price; `network-bound` prices what the
    exchange costs now.

What to do
    `unset NCCL_IB_DISABLE`, `NCCL_NET=IB`, `NCCL_IB_HCA` with the devices; in a container pass `/dev/infiniband` and
    `--ulimit memlock=-1`, on AWS install `aws-ofi-nccl`. Then `allpull compare BEFORE --with AFTER`.

When it is wrong
    Where the ports belong to another network, such as that of the storage, or a RoCE network without flow control loses
    packets, sockets may be chosen on purpose.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.hosts.transports import SOCKET, Transports
from allpull.explain.evidence.start import Start
from allpull.explain.remedy import Action, environment, sentence
from allpull.explain.remedy_text import quoted, variable
from allpull.units import counted

SOURCE = "log of NCCL"


def find(facts: Facts) -> list[Candidate]:
    """Advice, where ranks send through sockets beside faster devices."""
    nccl = facts.transports
    sending = {rank: networks for rank, networks in nccl.between_hosts.items() if networks == {SOCKET}}
    devices = {rank: _faster_devices(nccl, rank) for rank in sending}
    ranks = tuple(sorted(rank for rank, names in devices.items() if names))
    if not ranks:
        return []
    names = sorted({name for rank in ranks for name in devices[rank]})
    return [
        Candidate(
            rule="nccl-sockets",
            kind="advice",
            title=f"NCCL sends between hosts through TCP sockets, although they have {', '.join(names[:4])}"
            f"{' and more' if len(names) > 4 else ''}",
            remedy=_remedy(facts.start, nccl, names),
            evidence=(
                count(f"ranks that send through sockets, of {counted(facts.window.ranks, 'rank')}", len(ranks), SOURCE),
                count("RDMA devices with an active port", len(names), "records of hosts"),
            ),
            ranks=() if len(ranks) == facts.window.ranks else ranks,
        )
    ]


def _faster_devices(nccl: Transports, rank: int) -> list[str]:
    """Devices of the rank's host that are not slower than the interface of its sockets."""
    host = nccl.hosts[rank]
    rates = {nic.name: nic.bits_per_s for nic in nccl.nics.get(host, ())}
    used = [rate for name in nccl.socket_interfaces(rank) if (rate := rates.get(name)) is not None]
    slowest = max(used, default=0)
    return [
        nic.name.partition("/")[0] for nic in nccl.rdma(host) if nic.bits_per_s is None or nic.bits_per_s >= slowest
    ]


def _remedy(start: Start, nccl: Transports, names: list[str]) -> Action:
    if nccl.is_set("NCCL_IB_DISABLE"):
        return sentence(environment("unset NCCL_IB_DISABLE"), ", which is set to 1")
    if any(log.devices for log in nccl.ranks.values()):
        return sentence(variable(start, "NCCL_NET", "IB"), ": NCCL knows the devices, and was told to use sockets")
    plugin = "install the plug-in of the network (aws-ofi-nccl), or " if any(_is_efa(name) for name in names) else ""
    devices = "give the container its devices (/dev/infiniband, libibverbs, --ulimit memlock=-1); "
    return sentence(plugin, devices, variable(start, "NCCL_IB_HCA", quoted(names)))


def _is_efa(name: str) -> bool:
    return name.startswith(("efa", "rdmap"))
