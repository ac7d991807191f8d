"""Item 3: where only ends are recorded, a rank that is late inside backward costs at most its lateness."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound, assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, Training, Wire, even, spread

MIB = 1 << 20
LATE_S = 0.040
TRUE_COST_MS = {0.096: 40.0, 0.112: 29.5, 0.200: 4.6}
"""Seconds of all eight buckets on the lane → ms per step by which a rank that is 40 ms late delays the job."""


def busy_lane(lane_s: float) -> Training:
    """100 ms of backward, in which eight equal buckets become ready one by one."""
    wire = Wire(latency_s=0.0, bytes_per_s=80 * MIB / lane_s)
    return even(forward_s=0.050, backward_s=0.100, buckets=spread(total=80 * MIB, count=8), wire=wire, jitter=0.005)


def on_device(training: Training) -> Training:
    return dataclasses.replace(training, device=Device())


@pytest.mark.parametrize("lane_s", TRUE_COST_MS)
def test_with_bucket_times_the_price_is_exact(judge: Judge, lane_s: float) -> None:
    healthy = busy_lane(lane_s)
    judged = judge(healthy.later("backward", LATE_S, rank=2), healthy)
    assert judged.explained.window.level == "bucket"
    if lane_s == 0.200:
        assert not [finding for finding in judged.priced if finding.rule == "slow-rank"], judged.said()
    else:
        assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


@pytest.mark.parametrize("lane_s", TRUE_COST_MS)
@pytest.mark.parametrize("place", ["cpu", "device"])
def test_without_them_it_is_an_upper_bound(judge: Judge, lane_s: float, place: str) -> None:
    healthy = busy_lane(lane_s) if place == "cpu" else on_device(busy_lane(lane_s))
    judged = judge(healthy.later("backward", LATE_S, rank=2), healthy, Recording(buckets=False))
    assert judged.explained.window.level == "step"
    late = judged.finding("slow-rank", ranks=[2])
    assert_bound(late, judged.truth)
    assert "at most" in late.title
    if lane_s == 0.200:  # the lane is the cause
        assert judged.priced[0].rule == "network-bound", judged.said()


@pytest.mark.parametrize("place", ["cpu", "device"])
def test_lateness_before_backward_is_certain_even_then(judge: Judge, place: str) -> None:
    """A rank that is late in forward delays its first bucket as well: no lane hides that."""
    healthy = busy_lane(0.112) if place == "cpu" else on_device(busy_lane(0.112))
    judged = judge(healthy.later("forward", LATE_S, rank=2), healthy, Recording(buckets=False))
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)
