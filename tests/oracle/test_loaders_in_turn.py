"""Loaders of equal speed that all are too slow are waited for in turn: who waits says nothing of whose is slow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.test_loaders_at_their_limit import loaded, of_processes, slow_network
from tests.oracle.training import Device, Training, Wire, even

DEVICES = pytest.mark.parametrize(
    "device", [None, pytest.param(Device(issue_share=0.2), marks=pytest.mark.slow)], ids=["cpu", "device"]
)
FAST = Wire(latency_s=0.0, bytes_per_s=1e13)


def in_turn(ranks: int, batch_s: float, jitter: float, device: Device | None, steps: int = 100) -> Training:
    """Equal ranks, whose steps take 95 ms without loaders that make a batch in ``batch_s`` each, with two workers."""
    training = even(ranks=ranks, hosts=2, steps=steps, jitter=0.02, device=device)
    return loaded(training, 2, 2 * batch_s, jitter=jitter)


def quicker(training: Training, factor: float, ranks: list[int]) -> Training:
    """``training`` in which the loaders of ``ranks`` take ``factor`` times as long."""
    assert training.loader is not None
    batch_s = training.loader.batch_s.copy()
    batch_s[ranks] *= factor
    return dataclasses.replace(training, loader=dataclasses.replace(training.loader, batch_s=batch_s))


@DEVICES
@pytest.mark.parametrize(("ranks", "batch_s", "jitter"), [(4, 0.150, 0.1), (8, 0.150, 0.02), (8, 0.120, 0.1)])
def test_loaders_of_one_speed_are_the_fault_of_none(
    judge: Judge, ranks: int, batch_s: float, jitter: float, device: Device | None
) -> None:
    faulty = in_turn(ranks, batch_s, jitter, device)
    judged = judge(faulty, dataclasses.replace(faulty, loader=None), of_processes(2, timed=True))
    assert judged.truth > 1.2
    assert [one.rule for one in judged.priced] == ["input-bound"], judged.said()
    assert_priced(judged.finding("input-bound", ranks=[]), judged.truth, tolerance=0.02)
    if device is None:  # a device also waits for its host, after a late batch
        assert judged.explained.gains["input"] == pytest.approx(judged.truth, rel=0.02)


@DEVICES
def test_a_quick_loader_on_one_of_these_ranks_gains_nothing(judge: Judge, device: Device | None) -> None:
    """The truth behind the silence on single ranks."""
    faulty = in_turn(8, 0.150, 0.1, device)
    for rank in (0, 3, 7):
        assert judge(faulty, quicker(faulty, 0.2, [rank])).truth == pytest.approx(1.0, abs=0.01)


@DEVICES
@pytest.mark.parametrize("others_s", [0.130, 0.070])
def test_a_loader_that_is_slower_than_the_others_is_named(judge: Judge, others_s: float, device: Device | None) -> None:
    """Its price is what the loaders of the others allow: that of a batch per 130 ms, or all."""
    mended = in_turn(4, others_s, 0.05, device)
    faulty = quicker(mended, 0.180 / others_s, [2])
    judged = judge(faulty, mended, of_processes(2, timed=True))
    assert judged.truth > 1.3
    assert_priced(judged.finding("slow-loader-rank", ranks=[2]), judged.truth, tolerance=0.02)
    assert not [one for one in judged.priced if one.rule == "slow-loader-rank" and one.ranks != [2]], judged.said()


@DEVICES
def test_three_slow_loaders_of_eight_are_one_finding(judge: Judge, device: Device | None) -> None:
    """They are waited for in turn, but those of the others are twice as fast."""
    mended = in_turn(8, 0.070, 0.1, device)
    faulty = quicker(mended, 2.0, [1, 4, 6])
    judged = judge(faulty, mended, of_processes(2, timed=True))
    assert judged.truth > 1.3
    found = [one for one in judged.priced if one.rule == "slow-loader-rank"]
    assert {rank for one in found for rank in one.ranks} == {1, 4, 6}, judged.said()
    for one in found:
        assert_priced(one, judged.truth, tolerance=0.05)  # with those of the other two mended, it is not in turn
    assert {one.rule for one in judged.priced} == {"slow-loader-rank"}, judged.said()


@DEVICES
def test_a_late_rank_gains_what_the_next_loaders_allow(judge: Judge, device: Device | None) -> None:
    """Nobody waits for a loader until rank 1 is mended; then nobody gets more than a batch per 115 ms."""
    mended = in_turn(4, 0.115, 0.03, device)
    faulty = mended.later("backward", 0.040, rank=1)
    judged = judge(faulty, mended, of_processes(2, timed=True))
    unlimited = judge(faulty, dataclasses.replace(mended, loader=None)).truth
    assert unlimited > 1.1 * judged.truth > 1.1 * 1.1
    assert_priced(judged.finding("slow-rank", ranks=[1]), judged.truth, tolerance=0.02)


@DEVICES
def test_a_late_rank_that_loaders_nearly_hide_is_not_sold_alone(judge: Judge, device: Device | None) -> None:
    mended = in_turn(4, 0.133, 0.03, device)
    faulty = mended.later("backward", 0.040, rank=1)
    judged = judge(faulty, mended, of_processes(2, timed=True))
    both = judge(faulty, dataclasses.replace(mended, loader=None)).truth
    assert 1.0 <= judged.truth < 1.05 < both
    for one in judged.priced:
        assert_priced(one, both if one.rule == "hidden-losses" else judged.truth, tolerance=0.02)


@DEVICES
def test_a_network_gains_what_loaders_allow(judge: Judge, device: Device | None) -> None:
    faulty = loaded(slow_network(device=device), 2, 2 * 0.110, jitter=0.03)
    judged = judge(faulty, dataclasses.replace(faulty, wire=FAST), of_processes(2, timed=True))
    unlimited = judge(faulty, dataclasses.replace(faulty, wire=FAST, loader=None)).truth
    assert unlimited > 1.1 * judged.truth > 1.1 * 1.1
    found = judged.finding("network-bound")
    assert found.gain is not None
    assert found.gain.low <= judged.truth * 1.02, judged.said()
    assert judged.truth <= found.gain.high * 1.005, judged.said()
    assert found.gain.high <= judged.truth * 1.03, judged.said()


@DEVICES
@pytest.mark.parametrize("ranks", [2, 8])
def test_loaders_that_keep_up_are_healthy(judge: Judge, ranks: int, device: Device | None) -> None:
    """They take 80 % of a step, and vary by a tenth."""
    judged = judge(in_turn(ranks, 0.076, 0.1, device), None, of_processes(2, timed=True))
    assert not judged.priced, judged.said()


def test_an_evaluation_lets_loaders_get_ahead(judge: Judge) -> None:
    """A batch per 110 ms, steps of 95: what their workers make ahead while one rank evaluates is not waited for."""
    mended = loaded(even(ranks=4, hosts=2, steps=100, jitter=0.02), 2, 2 * 0.110, jitter=0.03)
    drawn = np.arange(100) % 10 == 9
    evaluated = mended.later("evaluation", np.where(drawn, 0.5, 0.0), rank=0)
    judged = judge(evaluated, mended, of_processes(2, timed=True))
    assert_priced(judged.finding("sequential-evaluation", ranks=[0]), judged.truth, tolerance=0.02)
