"""Item 11: whatever the clocks hide, within the bounds that were recorded, the truth is in the interval."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import Judged, assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, Training, Wire, even, spread

pytestmark = pytest.mark.slow

MIB = 1 << 20
BOUND_S = 0.007


def wrong_device(error_s: float) -> Recording:
    """Moments of the last rank's device are wrong by that much, and may be by ``BOUND_S``."""
    return Recording(device_error_s=(0.0, 0.0, 0.0, error_s), device_bound_s=BOUND_S)


def crooked_pings(there_s: float, back_s: float) -> Recording:
    """The clock of the second host seems to be off by half of the difference; the bound is half of the sum."""
    return Recording(there_s=there_s, back_s=back_s, offsets_s=(0.0, 2.0))


def assert_late_or_uncertain(judged: Judged) -> None:
    """The last rank is priced rightly, or the notes call its cost uncertain."""
    found = [finding for finding in judged.priced if finding.ranks == [3]]
    if found:
        assert_priced(found[0], judged.truth)
    else:
        about = [note for note in judged.explained.notes if note.startswith("Rank 3")]
        assert any("uncertain" in note or "resol" in note for note in about), judged.said() + judged.notes()


@pytest.mark.parametrize(
    "error_s",
    [
        0.0,
        0.006,
        -0.006,
    ],
)
def test_a_late_rank_whose_device_clock_is_wrong(judge: Judge, error_s: float) -> None:
    healthy = even(device=Device(), jitter=0.003)
    assert_late_or_uncertain(judge(healthy.later("backward", 0.008, rank=3), healthy, wrong_device(error_s)))


@pytest.mark.parametrize("error_s", [0.006, -0.006])
def test_a_device_clock_that_is_wrong_makes_no_rank_late(judge: Judge, error_s: float) -> None:
    judged = judge(even(device=Device(), jitter=0.003), recording=wrong_device(error_s))
    assert not judged.priced, judged.said()


def test_the_bound_of_device_clocks_is_stated(judge: Judge) -> None:
    judged = judge(even(hosts=2, device=Device()), recording=wrong_device(0.0))
    assert judged.explained.clock_error_s is not None
    assert judged.explained.clock_error_s >= BOUND_S


@pytest.mark.parametrize(
    ("pings_s", "device"),
    [
        pytest.param((0.010, 0.001), None, id="ahead, cpu"),
        pytest.param((0.001, 0.010), None, id="behind, cpu"),
        pytest.param((0.010, 0.001), Device(), id="ahead, device"),
        pytest.param((0.001, 0.010), Device(), id="behind, device"),
    ],
)
def test_a_late_rank_on_a_host_whose_clock_is_wrong(
    judge: Judge, pings_s: tuple[float, float], device: Device | None
) -> None:
    healthy = even(hosts=2, jitter=0.003, device=device)
    assert_late_or_uncertain(judge(healthy.later("backward", 0.012, rank=3), healthy, crooked_pings(*pings_s)))


@pytest.mark.parametrize(
    ("pings_s", "device"), [((0.010, 0.001), None), ((0.001, 0.010), Device())], ids=["ahead, cpu", "behind, device"]
)
def test_a_host_clock_that_is_wrong_makes_no_rank_late(
    judge: Judge, pings_s: tuple[float, float], device: Device | None
) -> None:
    judged = judge(even(hosts=2, jitter=0.003, device=device), recording=crooked_pings(*pings_s))
    assert not judged.priced, judged.said()


DISAGREEING = Recording(
    device_error_s=(0.0046, 0.0058, -0.0031, -0.0001, -0.0059, -0.0029, 0.0032, -0.0034), device_bound_s=BOUND_S
)


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_a_late_rank_among_devices_that_disagree(judge: Judge, phase: str) -> None:
    healthy = even(ranks=8, device=Device(), jitter=0.005)
    judged = judge(healthy.later(phase, 0.030, rank=3), healthy, DISAGREEING)
    assert_priced(judged.finding("slow-rank", ranks=[3]), judged.truth)


def test_moments_within_their_bounds_are_not_impossible(judge: Judge) -> None:
    judged = judge(even(ranks=8, device=Device(), jitter=0.005), recording=DISAGREEING)
    assert judged.explained.efficiency is not None, judged.notes()
    assert not judged.priced, judged.said()


@pytest.mark.parametrize(
    "pings_s",
    [
        pytest.param((0.009, 0.002), id="ahead"),
        pytest.param((0.002, 0.009), id="behind"),
    ],
)
def test_a_late_rank_behind_a_busy_lane_between_wrong_clocks(judge: Judge, pings_s: tuple[float, float]) -> None:
    wire = Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.050)
    healthy = even(hosts=2, buckets=spread(total=64 * MIB, count=8), wire=wire, jitter=0.005)
    judged = judge(healthy.later("backward", 0.060, rank=2), healthy, crooked_pings(*pings_s))
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


def networked(device: Device | None) -> Training:
    return even(hosts=2, jitter=0.003, wire=Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.090), device=device)


@pytest.mark.parametrize("pings_s", [(0.010, 0.001), (0.001, 0.010)], ids=["ahead", "behind"])
def test_the_network_between_wrong_clocks(judge: Judge, pings_s: tuple[float, float]) -> None:
    slow = networked(None)
    free = dataclasses.replace(slow, wire=Wire(latency_s=0.0, bytes_per_s=1e18))
    judged = judge(slow, free, crooked_pings(*pings_s))
    assert_priced(judged.finding("network-bound"), judged.truth)
    assert judged.explained.efficiency is not None
    transfer = judged.explained.efficiency.transfer
    assert transfer is not None
    assert transfer.low - 0.002 <= 1.0 / judged.truth <= transfer.high + 0.002


@pytest.mark.parametrize("error_s", [0.006, -0.006])
def test_the_network_between_wrong_device_clocks(judge: Judge, error_s: float) -> None:
    slow = networked(Device())
    free = dataclasses.replace(slow, wire=Wire(latency_s=0.0, bytes_per_s=1e18))
    judged = judge(slow, free, wrong_device(error_s))
    assert_priced(judged.finding("network-bound"), judged.truth)


@pytest.mark.parametrize(("there_s", "back_s"), [(0.012, 1e-4), (1e-4, 0.012)])
@pytest.mark.parametrize("rate", [1e9, 5e9])
def test_the_factors_of_the_tree_are_those_of_right_clocks(
    judge: Judge, there_s: float, back_s: float, rate: float
) -> None:
    """Clocks are compared at the ends of the window alone: an error of 6 ms in each step is one of 6 ms in all."""
    late = even(hosts=2, jitter=0.003, wire=Wire(latency_s=2e-4, bytes_per_s=rate)).later("backward", 0.010, rank=3)
    right = judge(late).explained.efficiency
    wrong = judge(late, recording=crooked_pings(there_s, back_s)).explained.efficiency
    assert right is not None
    assert wrong is not None
    for name in ("transfer", "input", "orchestration", "serialisation", "load_balance", "parallel"):
        factor = getattr(wrong, name)
        assert factor.low <= getattr(right, name).value <= factor.high, name
