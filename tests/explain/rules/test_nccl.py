"""What NCCL logged of its transports becomes advice where hosts have better ones, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.explain.made import found, hosts_of, job

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.hosts.transports import Transports
from allpull.explain.evidence.start import Start
from allpull.rundir.read.nccl_log import parse_transports
from allpull.schema.explained import Finding
from allpull.schema.host import Nic

NODES = hosts_of(4)
H100 = Machine(hosts=NODES, gpus=dict.fromkeys(NODES, ("NVIDIA H100 80GB HBM3",)), autocast="bfloat16")
INFINIBAND = (Nic(name="eth0", bits_per_s=10**10), Nic(name="mlx5_0/1", bits_per_s=4 * 10**11))
SOCKETS = ("Using network Socket", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "via NET/Socket/0", "via P2P/CUMEM")
GDR = (
    "Using network IB",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "via NET/IB/0/GDRDMA",
    "via P2P/IPC",
)


def logged(*facts: str, nics: tuple[Nic, ...] = INFINIBAND, hosts: tuple[str, ...] = NODES) -> Transports:
    """The transports of four ranks whose NCCL wrote ``facts``; those that begin with via are of channels."""
    lines = [
        f"{host}:{rank}:9 [0] NCCL INFO {'Channel 00/0 : 0[0] -> 1[0] ' if fact.startswith('via') else ''}{fact}"
        for rank, host in enumerate(hosts)
        for fact in facts
    ]
    processes = parse_transports(line.encode() for line in lines)
    return Transports(ranks={one.pid: one for one in processes}, nics=dict.fromkeys(hosts, nics), hosts=hosts)


def advised(transports: Transports, machine: Machine = H100) -> list[Finding]:
    return [one for one in found(job(4), machine, transports=transports).findings if one.rule.startswith("nccl")]


def test_the_best_transports_of_hosts_are_no_fault() -> None:
    assert advised(logged(*GDR)) == []
    assert advised(Transports()) == []


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        (("NCCL_IB_DISABLE set by environment to 1.",), "unset NCCL_IB_DISABLE"),
        (("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",), "export NCCL_NET=IB"),
        (("NET/IB : No device found.",), "/dev/infiniband"),
    ],
)
def test_sockets_beside_infiniband_are_named_with_the_remedy_for_their_reason(more, remedy: str) -> None:
    (finding,) = advised(logged(*SOCKETS, *more))
    assert finding.rule == "nccl-sockets"
    assert finding.advice
    assert finding.ranks == []
    assert "mlx5_0" in finding.title
    assert remedy in finding.remedy


def test_variables_are_given_as_the_launcher_needs_them() -> None:
    (finding,) = found(job(4), H100, transports=logged(*SOCKETS, GDR[1]), start=Start(by_mpi=True)).findings
    assert "mpirun -x NCCL_NET=IB" in finding.remedy


@pytest.mark.parametrize(
    "transports",
    [
        pytest.param(logged(*SOCKETS, nics=(Nic(name="eth0", bits_per_s=10**10),)), id="no InfiniBand"),
        pytest.param(logged(*SOCKETS, nics=(Nic(name="eth0"), Nic(name="mana_0/1"))), id="a device NCCL cannot use"),
        pytest.param(
            logged(*SOCKETS, nics=(Nic(name="eth0", bits_per_s=10**11), Nic(name="mlx5_0/1", bits_per_s=10**10))),
            id="a slower card",
        ),
        pytest.param(logged(*SOCKETS, hosts=("node1",) * 4), id="one host, whose GPUs use no sockets"),
        pytest.param(logged("Using network Socket", "via P2P/CUMEM", hosts=("node1",) * 4), id="nothing to send"),
        pytest.param(logged(*SOCKETS[:2], *GDR[2:]), id="sockets are named, InfiniBand sends"),
        pytest.param(logged("via NET/AWS Libfabric/0/GDRDMA", "via P2P/CUMEM"), id="a plug-in"),
    ],
)
def test_other_sockets_are_no_fault(transports: Transports) -> None:
    assert advised(transports) == []


def test_a_bridge_is_named_where_it_sends() -> None:
    bridged = logged(
        "NET/Socket : Using [0]docker0:172.17.0.1<0> [1]eth0:10.0.0.1<0>",
        "via NET/Socket/0",
        "via P2P/IPC",
        nics=(Nic(name="eth0", bits_per_s=10**10), Nic(name="docker0")),
    )
    (finding,) = advised(bridged)
    assert finding.rule == "nccl-interface"
    assert "docker0" in finding.title
    assert "NCCL_SOCKET_IFNAME=^docker0" in finding.remedy
    beside = logged("NET/Socket : Using [0]eth0:10.0.0.1<0> [1]virbr0:192.168.122.1<0>", "via NET/Socket/0", nics=())
    assert advised(beside) == []


def test_a_slow_interface_is_named_where_all_hosts_have_a_much_faster_one() -> None:
    slow = (Nic(name="eth0", bits_per_s=10**9), Nic(name="eth1", bits_per_s=25 * 10**9), Nic(name="lo"))
    (finding,) = advised(logged(*SOCKETS, nics=slow))
    assert (finding.rule, finding.options) == ("nccl-interface", ["NCCL_SOCKET_IFNAME"])
    assert "NCCL_SOCKET_IFNAME=eth1" in finding.remedy
    twice = (Nic(name="eth0", bits_per_s=10**10), Nic(name="eth1", bits_per_s=2 * 10**10))
    assert advised(logged(*SOCKETS, nics=twice)) == []
    unknown = (Nic(name="eth0"), Nic(name="eth1", bits_per_s=10**11))
    assert advised(logged(*SOCKETS, nics=unknown)) == []
    some = logged(*SOCKETS, nics=slow)
    assert advised(replace(some, nics={**some.nics, "node2": slow[:1]})) == []


def test_linked_gpus_that_go_through_the_host_are_named() -> None:
    shared = logged("via SHM/direct/direct", hosts=("node1",) * 4)
    (finding,) = advised(shared)
    assert finding.rule == "nccl-no-p2p"
    off = logged("NCCL_P2P_DISABLE set by environment to 1.", "via SHM/direct/direct", hosts=("node1",) * 4)
    assert "unset NCCL_P2P_DISABLE" in advised(off)[0].remedy
    assert advised(logged("via SHM/direct/direct", "via P2P/IPC", hosts=("node1",) * 4)) == []
    slots = replace(H100, gpus={"node1": ("NVIDIA GeForce RTX 4090",)})
    assert advised(off, slots) == []
    assert advised(shared, replace(H100, gpus={"node1": ("NVIDIA A100-PCIE-40GB",)})) == []


def test_infiniband_through_host_memory_is_named() -> None:
    (finding,) = advised(logged(*GDR[:2], "via NET/IB/0", "via P2P/IPC"))
    assert finding.rule == "nccl-no-gdr"
    assert "nvidia-peermem" in finding.remedy
    assert advised(logged(*GDR[:2], "via NET/IB/0", "via NET/IB/1/GDRDMA", "via P2P/IPC")) == []
    assert advised(logged(*GDR[:2], "via NET/IB/0", "via P2P/IPC"), replace(H100, gpus={"node1": ("RTX 4090",)})) == []
    assert advised(logged("via NET/IBext_v8/0", "via P2P/IPC")) == []
