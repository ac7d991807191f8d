"""Item 1: every reducing backward pass of a step is a meeting of all ranks."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, Training, Wire, even, spread

MIB = 1 << 20
LATE_S = 0.030
SHORT = Wire(latency_s=0.0002, bytes_per_s=1e10)


def accumulating(ranks: int = 2) -> Training:
    """Four passes per step without ``no_sync``, 63 ms in all."""
    buckets = spread(total=8 * MIB, count=2)
    return even(
        ranks=ranks, passes=4, forward_s=0.005, backward_s=0.009, optimizer_s=0.003, buckets=buckets, wire=SHORT
    )


def at(training: Training, place: str) -> Training:
    """``training`` on a device, if that is its ``place``."""
    return dataclasses.replace(training, device=Device()) if place == "device" else training


PLACES = pytest.mark.parametrize("place", ["cpu", "device"])


def late_in_three(training: Training, rank: int) -> Training:
    for number in range(3):
        training = training.later("forward", LATE_S, rank=rank, number=number)
    return training


@PLACES
@pytest.mark.parametrize("buckets", [True, False], ids=["buckets", "ends"])
def test_a_rank_that_is_late_in_earlier_passes(judge: Judge, buckets: bool, place: str) -> None:
    healthy = at(accumulating(), place)
    judged = judge(late_in_three(healthy, rank=1), healthy, Recording(buckets=buckets))
    found = judged.finding("slow-rank", ranks=[1])
    assert_priced(found, judged.truth)
    assert judged.explained.phases.mean["wait"] == pytest.approx(3 * LATE_S / 2, rel=0.05)


def test_where_only_the_last_was_recorded_nothing_is_called_healthy(judge: Judge) -> None:
    """Runs of older versions: four passes, one arrival."""
    judged = judge(late_in_three(accumulating(), rank=1), recording=Recording(reductions=False))
    assert judged.explained.healthy is None
    assert judged.explained.notes


def test_a_device_of_which_only_the_last_was_recorded(judge: Judge) -> None:
    healthy = dataclasses.replace(accumulating(), device=Device())
    judged = judge(late_in_three(healthy, rank=1), healthy, Recording(reductions=False))
    late = [finding for finding in judged.priced if finding.ranks == [1]]
    if late:
        assert_priced(late[0], judged.truth)
    else:
        assert judged.explained.healthy is None
        assert judged.explained.notes


@PLACES
def test_two_ranks_that_are_late_in_different_passes(judge: Judge, place: str) -> None:
    """Neither hides the other: each has a price of its own."""
    healthy = at(even(passes=4, forward_s=0.010, backward_s=0.020), place)
    first = healthy.later("forward", LATE_S, rank=1, number=0)
    second = healthy.later("forward", LATE_S, rank=2, number=2)
    both = first.later("forward", LATE_S, rank=2, number=2)
    judged = judge(both, second)
    assert_priced(judged.finding("slow-rank", ranks=[1]), judged.truth)
    judged = judge(both, first)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


def adversarial() -> Training:
    """Two networks that take turns: the discriminator first, a network of its own."""
    both = even(passes=2, forward_s=0.020, backward_s=0.030)
    discriminator = dataclasses.replace(both.passes[0], network=1, buckets=spread(total=16 * MIB, count=2))
    return dataclasses.replace(both, passes=(discriminator, both.passes[1]))


@PLACES
def test_a_rank_that_is_late_in_another_network(judge: Judge, place: str) -> None:
    healthy = at(adversarial(), place)
    judged = judge(healthy.later("backward", LATE_S, rank=3, number=0), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[3]), judged.truth)


def test_a_rank_that_is_late_in_the_last_pass(judge: Judge) -> None:
    healthy = accumulating(ranks=4)
    judged = judge(healthy.later("forward", LATE_S, rank=2, number=3), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


@PLACES
def test_a_rank_that_is_late_where_nothing_is_reduced(judge: Judge, place: str) -> None:
    """Under ``no_sync`` the lateness of all passes meets in the last one."""
    healthy = at(even(passes=4, reduces=(False, False, False, True), forward_s=0.010, backward_s=0.020), place)
    judged = judge(healthy.later("forward", LATE_S, rank=2, number=1), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


@PLACES
def test_accumulation_without_no_sync(judge: Judge, place: str) -> None:
    """A lane that is busy for 40 ms in each of four passes of 30 ms."""
    wire = Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.040)
    buckets = spread(total=64 * MIB, count=4)
    each = at(even(passes=4, forward_s=0.010, backward_s=0.020, buckets=buckets, wire=wire), place)
    passes = tuple(dataclasses.replace(one, reduces=number == 3) for number, one in enumerate(each.passes))
    judged = judge(each, dataclasses.replace(each, passes=passes))
    assert_priced(judged.finding("accumulate-without-no-sync", ranks=[]), judged.truth)
    assert "no-overlap" not in [finding.rule for finding in judged.priced], judged.said()


def test_a_late_rank_keeps_the_jitter_of_each_pass(judge: Judge) -> None:
    """Of two ranks that vary by 5 %, one is the last in each of four passes, whoever was late in one of them."""
    healthy = even(ranks=2, passes=4, steps=80, jitter=0.05)
    judged = judge(healthy.later("forward", 0.060, rank=1, number=1), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[1]), judged.truth, tolerance=0.002)
