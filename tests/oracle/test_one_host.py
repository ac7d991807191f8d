"""Item 12: thresholds for ranks that share CPUs do not silence devices, which share none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound, assert_priced
from tests.oracle.training import Device, Wire, even

MIB = 1 << 20


@pytest.mark.parametrize("lane_s", [0.060, 0.075])
def test_a_slow_network_inside_one_host(judge: Judge, lane_s: float) -> None:
    """Eight devices without a fast way to each other: less than a quarter of a step."""
    slow = even(ranks=8, wire=Wire(latency_s=0.0, bytes_per_s=64 * MIB / lane_s), device=Device())
    judged = judge(slow, dataclasses.replace(slow, wire=Wire(latency_s=0.0, bytes_per_s=1e18)))
    assert 1.12 < judged.truth < 1.35
    assert_priced(judged.finding("network-bound", ranks=[]), judged.truth)


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_network_that_takes_less_than_a_tenth_of_a_step(judge: Judge, hosts: int) -> None:
    """Connections other than TCP: how much of it is the network's is not known."""
    slow = even(ranks=8, hosts=hosts, wire=Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.036), device=Device())
    judged = judge(slow, dataclasses.replace(slow, wire=Wire(latency_s=0.0, bytes_per_s=1e18)))
    assert 1.06 < judged.truth < 1.10
    assert_bound(judged.finding("network-bound", ranks=[]), judged.truth)
    assert not judged.explained.healthy


def test_a_device_that_is_a_little_slow(judge: Judge) -> None:
    """By 3 % of a step."""
    healthy = even(ranks=8, jitter=0.005, device=Device())
    judged = judge(healthy.later("backward", 0.003, rank=5), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[5]), judged.truth)


def test_devices_that_are_late_in_turn(judge: Judge) -> None:
    """By 4.5 % of a step."""
    rng = np.random.default_rng(5)
    healthy = even(steps=62, jitter=0.003, device=Device())
    turns = healthy
    for step, rank in enumerate(rng.integers(4, size=62)):
        turns = turns.later("backward", 0.0045, rank=int(rank), steps=step)
    judged = judge(turns, healthy)
    assert_priced(judged.finding("rotating-imbalance", ranks=[]), judged.truth)
