"""Item 3: where only ends are recorded, a rank that is late inside backward costs at most its lateness."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound, assert_priced
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Device, Training, Wire, even, spread

from allpull.analyse.aligned import AlignedRun
from allpull.replay.engine import replay
from allpull.replay.recording.build import record_window
from allpull.replay.whatif.balanced import like_median
from allpull.replay.window import Window
from allpull.rundir.read.run import read_run

MIB = 1 << 20
LATE_S = 0.040
LANES_S = (0.096, 0.112, 0.200)
"""Seconds of all eight buckets on the lane."""


def busy_lane(lane_s: float) -> Training:
    """100 ms of backward, in which eight equal buckets become ready one by one."""
    wire = Wire(latency_s=0.0, bytes_per_s=80 * MIB / lane_s)
    return even(forward_s=0.050, backward_s=0.100, buckets=spread(total=80 * MIB, count=8), wire=wire, jitter=0.005)


def on_device(training: Training) -> Training:
    return dataclasses.replace(training, device=Device())


@pytest.mark.parametrize("lane_s", LANES_S)
@pytest.mark.parametrize("place", ["cpu", "device"])
def test_with_bucket_times_the_price_is_exact(judge: Judge, lane_s: float, place: str) -> None:
    healthy = busy_lane(lane_s) if place == "cpu" else on_device(busy_lane(lane_s))
    judged = judge(healthy.later("backward", LATE_S, rank=2), healthy)
    assert judged.explained.window.level == "bucket"
    if lane_s == 0.200:
        assert not [finding for finding in judged.priced if finding.rule == "slow-rank"], judged.said()
    else:
        assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


@pytest.mark.parametrize(("lane_s", "cost_s"), [(0.096, 0.0394), (0.112, 0.0292), (0.200, 0.0048)])
def test_what_it_costs_behind_a_device(tmp_path: Path, lane_s: float, cost_s: float) -> None:
    """Even where that is too little for a finding."""
    healthy = on_device(busy_lane(lane_s))
    late = healthy.later("backward", LATE_S, rank=2)
    assert (simulate(late).seconds(2) - simulate(healthy).seconds(2)) / 38 == pytest.approx(cost_s, rel=0.01)
    window = record_window(AlignedRun(read_run(write(simulate(late), tmp_path))))
    assert isinstance(window, Window)
    even_s = replay(like_median(window, ranks=(2,))).total_s
    assert (replay(window).total_s - even_s) / 38 == pytest.approx(cost_s, rel=0.05)


@pytest.mark.parametrize("lane_s", LANES_S)
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
