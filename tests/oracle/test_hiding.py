"""Ranks that are late in different phases, or pause in turn, hide each other in totals and in medians."""

from __future__ import annotations

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.training import Device, even

PLACES = pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])


@PLACES
def test_two_of_three_ranks_in_different_phases(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=3, device=device)
    judged = judge(healthy.later("forward", 0.020, rank=0).later("backward", 0.020, rank=1), healthy)
    for rank in (0, 1):
        assert_priced(judged.finding("slow-rank", ranks=[rank]), judged.truth)


def test_all_of_three_devices_in_different_phases(judge: Judge) -> None:
    healthy = even(ranks=3, device=Device())
    late = healthy.later("forward", 0.020, rank=0).later("backward", 0.020, rank=1).later("optimizer", 0.020, rank=2)
    judged = judge(late, healthy)
    for rank in range(3):
        assert_priced(judged.finding("slow-rank", ranks=[rank]), judged.truth, 0.015)


@PLACES
def test_one_rank_of_three_that_is_fast_makes_no_other_slow(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=3, device=device)
    assert not judge(healthy.later("forward", -0.020, rank=0)).priced


def test_a_rank_that_cuts_its_phases_otherwise_is_not_slow(judge: Judge) -> None:
    healthy = even(ranks=3, device=Device())
    other_cut = healthy.later("forward", 0.010, rank=0).later("backward", -0.010, rank=0)
    other_cut = other_cut.later("backward", 0.010, rank=1).later("forward", -0.010, rank=1)
    assert not judge(other_cut).priced


@PLACES
def test_two_ranks_that_pause_in_turn_for_less_than_a_quarter_of_a_step(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=2, steps=62, device=device)
    pausing = healthy
    for turn, step in enumerate(range(4, 62, 2)):
        pausing = pausing.later("forward", 0.018, rank=turn % 2, steps=step)
    judged = judge(pausing, healthy)
    assert_priced(judged.finding("rotating-imbalance", ranks=[]), judged.truth, 0.02)
