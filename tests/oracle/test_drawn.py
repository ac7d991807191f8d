"""Shapes that blind draws brought up: host clocks of different rates, few reductions, and devices that starve."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, Wire, even, spread

MIB = 1 << 20
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("drift", [(-2e-5, 2e-5), (2e-5, -2e-5)], ids=["faster", "slower"])
def test_accumulation_between_clocks_of_different_rates(judge: Judge, drift: tuple[float, float]) -> None:
    """Work is scaled to one clock: 2 µs of optimizer seem to fall between two passes of a step of 0.5 s."""
    wire = Wire(latency_s=0.0, bytes_per_s=46 * MIB / 0.070)
    buckets = spread(total=46 * MIB, count=6)
    each = even(
        ranks=4, hosts=2, passes=7, forward_s=0.020, backward_s=0.035, steps=40, buckets=buckets, wire=wire, seed=31
    )
    passes = tuple(dataclasses.replace(one, reduces=number == 6) for number, one in enumerate(each.passes))
    judged = judge(each, dataclasses.replace(each, passes=passes), Recording(offsets_s=(0.0, 30.0), drift=drift))
    assert_priced(judged.finding("accumulate-without-no-sync", ranks=[]), judged.truth)


def test_what_a_host_does_after_a_late_batch_makes_no_device_slow(judge: Judge) -> None:
    """It fetches for nearly a step; then its work between phases, and the issuing of forward, delay an idle device."""
    device = Device(issue_share=0.13, ahead=2, pieces=1)
    wire = Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.003)
    healthy = even(
        ranks=3, hosts=3, forward_s=0.005, backward_s=0.0065, other_s=0.0002, wire=wire, device=device, seed=32
    )
    judged = judge(healthy.later("input", 0.020, rank=2), healthy)
    assert_priced(judged.finding("slow-loader-rank", ranks=[2]), judged.truth)
    assert [finding.rule for finding in judged.priced] == ["slow-loader-rank"], judged.said()
