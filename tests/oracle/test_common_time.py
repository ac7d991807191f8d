"""Item 6: time that all ranks lose alike, or one after the other, is not useful."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, Training, even

ALL = slice(None)


def place(training: Training, where: str) -> Training:
    return dataclasses.replace(training, device=Device()) if where == "device" else training


@pytest.mark.parametrize(
    ("phase", "where"), [("forward", "cpu"), ("backward", "device"), ("optimizer", "cpu"), ("other", "device")]
)
def test_three_stalls_of_all_ranks(judge: Judge, phase: str, where: str) -> None:
    """Three of 3 s in 60 steps of 66 ms: recompilation, an allocator that retries, a file system that hangs."""
    healthy = place(even(steps=62, forward_s=0.020, backward_s=0.036, jitter=0.02), where)
    stalled = healthy
    for step in (12, 31, 49):
        stalled = stalled.later(phase, 3.0, rank=ALL, steps=step)
    judged = judge(stalled, healthy)
    assert_priced(judged.finding("common-stall", ranks=[]), judged.truth, 0.03)
    assert judged.explained.healthy is None


def slower_by(training: Training, share: float, steps: slice) -> Training:
    """All ranks compute longer by ``share`` in ``steps``."""
    for phase in ("forward", "backward"):
        now = getattr(training.passes[0], phase)[:, steps]
        training = training.later(phase, share * now, rank=ALL, steps=steps)
    return training.later("optimizer", share * training.optimizer[:, steps], rank=ALL, steps=steps)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_all_ranks_slow_down_half_way(judge: Judge, where: str) -> None:
    healthy = place(even(steps=62), where)
    judged = judge(slower_by(healthy, 0.4, slice(32, None)), healthy)
    assert_priced(judged.finding("drift", ranks=[]), judged.truth, 0.03)


def test_clocks_that_drop_half_way_are_evidence(judge: Judge) -> None:
    healthy = place(even(steps=62), "device")
    drops_at = 32 * 0.098

    def gpu(rank: int, at: float) -> dict[str, Any]:
        hot = at > drops_at
        clock = 1_980_000_000 if not hot else 1_415_000_000
        return {"busy_share": 1.0, "clock_hz": clock, "power_w": 690.0, "temperature_c": 88.0 if hot else 70.0}

    judged = judge(slower_by(healthy, 0.4, slice(32, None)), healthy, Recording(gpu=gpu, sample_s=0.25))
    found = judged.finding("drift", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    assert {line.unit for line in found.evidence} & {"Hz", "MHz", "C", "°C"}, found.evidence


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_ranks_that_pause_in_turn(judge: Judge, where: str) -> None:
    """Every third step another of eight ranks pauses for 90 ms, as garbage collection does."""
    healthy = place(even(ranks=8, steps=98), where)
    pausing = healthy
    for turn, step in enumerate(range(4, 98, 3)):
        pausing = pausing.later("forward", 0.090, rank=turn % 8, steps=step)
    judged = judge(pausing, healthy)
    assert_priced(judged.finding("rotating-imbalance", "staggered-pauses", ranks=[]), judged.truth, 0.04)


def test_four_stalls_in_a_short_run(judge: Judge) -> None:
    """In every ninth step, as a cache that is rebuilt or a file that is reopened."""
    healthy = even(steps=40)
    stalled = healthy.later("optimizer", 2.0, rank=ALL, steps=slice(7, None, 9))
    judged = judge(stalled, healthy)
    assert_priced(judged.finding("common-stall", ranks=[]), judged.truth, 0.03)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_all_ranks_slow_down_little_by_little(judge: Judge, where: str) -> None:
    """As a machine that heats up: at the end they take 1.6 times as long as at first."""
    healthy = place(even(steps=62), where)
    slower = healthy
    for phase in ("forward", "backward"):
        now = getattr(healthy.passes[0], phase)
        slower = slower.later(phase, now * np.linspace(0.0, 0.6, 62), rank=ALL)
    judged = judge(slower, healthy)
    assert_priced(judged.finding("drift", ranks=[]), judged.truth, 0.1)
