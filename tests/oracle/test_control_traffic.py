"""Item 4: TCP connections that do not carry the gradients say nothing of the network that does."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Link, Recording
from tests.oracle.simulator import simulate
from tests.oracle.training import Device, Training, Wire, even, spread

HOSTS = 4
GRADIENTS = 400 << 20
BUSY_S = 0.090  # of the lane, per step
PAIRS = [(one, other) for one in range(HOSTS) for other in range(HOSTS) if one != other]


def exchanging(device: Device | None, busy_s: float = BUSY_S) -> Training:
    """Eight ranks on four hosts, whose backward of 50 ms cannot hide the exchange."""
    wire = Wire(latency_s=0.0001, bytes_per_s=GRADIENTS / busy_s)
    buckets = spread(total=GRADIENTS, count=8)
    return even(ranks=8, hosts=HOSTS, backward_s=0.050, buckets=buckets, wire=wire, device=device)


def without_network(training: Training) -> Training:
    return dataclasses.replace(training, wire=Wire(latency_s=0.0, bytes_per_s=1e18))


def next_door(one: int, other: int) -> bool:
    return (other - one) % HOSTS == 1


CONTROL = {
    "quiet": {pair: Link(sent_bytes=2e4, busy_share=0.002) for pair in PAIRS},
    # A store on the first host, with heartbeats from all others.
    "store": {
        pair: Link(sent_bytes=2e6, busy_share=0.3) if 0 in pair else Link(sent_bytes=1e3, busy_share=1e-5)
        for pair in PAIRS
    },
    # The control connections of one host are slow: a firewall, a management port.
    "one slow": {pair: Link(sent_bytes=2e6, busy_share=0.4 if 2 in pair else 0.02) for pair in PAIRS},
}


@pytest.mark.parametrize("place", ["cpu", "device"])
@pytest.mark.parametrize("traffic", CONTROL)
def test_control_traffic_beside_another_network(judge: Judge, traffic: str, place: str) -> None:
    training = exchanging(Device() if place == "device" else None)
    judged = judge(training, without_network(training), Recording(links=CONTROL[traffic]))
    assert [finding.rule for finding in judged.priced] == ["network-bound"], judged.said()
    assert_priced(judged.priced[0], judged.truth)


@pytest.mark.parametrize("place", ["cpu", "device"])
def test_no_links_at_all(judge: Judge, place: str) -> None:
    training = exchanging(Device() if place == "device" else None)
    judged = judge(training, without_network(training))
    assert_priced(judged.finding("network-bound", ranks=[]), judged.truth)


def ring(training: Training, busy_s: dict[int, float]) -> dict[tuple[int, int], Link]:
    """TCP that carries the gradients around the ring; ``busy_s`` per step of the connections of each host."""
    step_s = simulate(training).seconds(2) / (training.steps - 2)
    sent = 2 * (training.ranks - 1) / training.ranks * GRADIENTS / step_s
    idle = Link(sent_bytes=1e4, busy_share=0.001)
    return {
        (one, other): Link(sent_bytes=sent, busy_share=max(busy_s[one], busy_s[other]) / step_s)
        if next_door(one, other)
        else idle
        for one, other in PAIRS
    }


def test_links_that_carry_the_gradients(judge: Judge) -> None:
    training = exchanging(None)
    links = ring(training, dict.fromkeys(range(HOSTS), BUSY_S))
    judged = judge(training, without_network(training), Recording(links=links))
    assert_priced(judged.finding("network-bound", ranks=[]), judged.truth)


def test_a_link_that_carries_them_slowly(judge: Judge) -> None:
    training = exchanging(None)
    links = ring(training, {0: 0.030, 1: 0.030, 2: BUSY_S, 3: 0.030})
    judged = judge(training, exchanging(None, busy_s=0.030), Recording(links=links))
    assert_priced(judged.finding("slow-link", ranks=[4, 5]), judged.truth)
