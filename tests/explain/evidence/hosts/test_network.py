"""Which connection is slow: a ring of hosts with one slow link, a slow uplink, slow links only, and too few hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.explain.made import hosts_of, ring
from tests.replay.windows import window

from allpull.explain.evidence.hosts.machine import Connection, Machine
from allpull.explain.evidence.hosts.network import network_of


def seen(hosts: int, rates: dict[tuple[int, int], float] | None = None):
    return network_of(Machine(hosts=hosts_of(2 * hosts), connections=ring(hosts, rates)))


@pytest.mark.parametrize("hosts", [3, 4, 8, 32])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_host_whose_ways_are_slow_has_a_slow_link(hosts: int, slow: int) -> None:
    rates = {((slow - 1) % hosts, slow): 8e6, (slow, (slow + 1) % hosts): 12e6}
    network = seen(hosts, rates)
    assert network.slow_host == f"node{slow + 1}"
    assert network.faster == pytest.approx(10)


@pytest.mark.parametrize(("hosts", "left"), [(4, 2), (8, 3), (6, 3)])
def test_two_slow_ways_that_share_no_host_lie_between_groups(hosts: int, left: int) -> None:
    network = seen(hosts, {(left - 1, left): 9e6, (hosts - 1, 0): 11e6})
    assert network.slow_host is None
    assert sorted(len(group) for group in network.groups) == sorted([left, hosts - left])


def test_what_backpressure_does_to_the_next_connection_does_not_blame_its_host() -> None:
    """As measured on a rehearsed ring: connections of node2 give 6 and 9 MB/s, the one behind them 24, the last 103."""
    network = seen(4, {(0, 1): 8.9e6, (1, 2): 5.8e6, (2, 3): 23.8e6, (3, 0): 103e6})
    assert network.slow_host == "node2"


@pytest.mark.parametrize(
    "rates", [{}, {(0, 1): 60e6, (2, 3): 150e6}, {(0, 1): 5e6, (1, 2): 5e6, (2, 3): 6e6, (3, 0): 4e6}]
)
def test_equal_ways_single_out_nobody(rates: dict[tuple[int, int], float]) -> None:
    network = seen(4, rates)
    assert (network.slow_host, network.groups, network.faster) == (None, (), 1.0)


def test_two_hosts_have_nothing_to_compare_with() -> None:
    assert seen(2, {(0, 1): 1e6}).groups == ()


def test_a_connection_that_carries_only_control_says_nothing() -> None:
    control = Connection(
        source="node1", target="node3", seconds=1.0, sent_bytes=10**6, bytes_per_s=1e3, busy_share=0.9, retransmits=0
    )
    machine = Machine(hosts=hosts_of(8), connections=(*ring(4), control))
    assert network_of(machine).slow == ()
    assert len(network_of(machine).connections) == 4


@pytest.mark.parametrize(("sent", "counts"), [(1.0, True), (0.5, True), (0.4, False), (0.001, False)])
def test_connections_that_do_not_carry_the_gradients_say_nothing(sent: float, counts: bool) -> None:
    """Four hosts send 2·3/4 of 40 MB in each step of 160 ms, or half of it in 16 bits; torchrun's store sends less."""
    one = window(8, 50, backward=0.1, bucket_s=[0.06], lead_s=[0.0], sizes=[40 * 10**6])
    sends_bytes_per_s = 1.5 * 40e6 / 0.16
    connections = tuple(
        replace(connection, sent_bytes=int(sent * sends_bytes_per_s), bytes_per_s=rate)
        for connection, rate in zip(ring(4), [1e6, 1e8, 1e8, 1e6], strict=True)
    )
    network = network_of(Machine(hosts=hosts_of(8), connections=connections), one)
    assert (network.slow_host == "node1") == counts
    assert (network.busy_share is not None) == counts
    assert network.carries_other != counts


def test_without_records_of_links_nothing_is_known() -> None:
    network = network_of(Machine(hosts=hosts_of(4)))
    assert (network.connections, network.busy_share, network.rate) == ((), None, None)


def test_several_connections_at_once_do_not_make_a_way_busier_than_always() -> None:
    connections = tuple(replace(connection, busy_share=1.7) for connection in ring(4))
    assert network_of(Machine(hosts=hosts_of(8), connections=connections)).busy_share == 1.0
