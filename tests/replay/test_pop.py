"""POP efficiencies of windows: published ones, and what ties them to the efficiency tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.published import PUBLISHED, as_published
from tests.replay.windows import anything, late, only, window

from allpull.explain.efficiency_tree import tree
from allpull.replay.engine import replay
from allpull.replay.pop import against_reference, pop
from allpull.replay.whatif.network import single_rank
from allpull.replay.whatif.work import orchestration_excess_s
from allpull.replay.window import Window
from allpull.schema.pop import PopEfficiencies


def efficiencies(one: Window) -> PopEfficiencies:
    measured = pop(one)
    assert measured is not None
    return measured


@pytest.mark.parametrize("processes", PUBLISHED)
def test_published_efficiencies(processes: int) -> None:
    *_, transfer, serialisation, load_balance, parallel = PUBLISHED[processes]
    found = efficiencies(as_published(processes))
    assert found.parallel == pytest.approx(parallel, abs=1e-5)
    assert found.load_balance == pytest.approx(load_balance, abs=1e-5)
    assert found.serialisation == pytest.approx(serialisation, abs=1e-5)
    assert found.transfer == pytest.approx(transfer, abs=1e-5)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_identities_with_the_tree(seed: int) -> None:
    one = anything(seed)
    found, grown = efficiencies(one), tree(one).efficiency
    assert grown is not None
    assert grown.transfer is not None
    assert grown.load_balance is not None
    assert grown.serialisation is not None
    base = single_rank(one)
    replayed = replay(base).total_s / one.measured_s
    assert found.parallel == pytest.approx(grown.parallel.value * replayed)
    assert found.transfer == pytest.approx(grown.transfer.value * replayed)
    useful_s = found.communication * one.measured_s
    excess_s = orchestration_excess_s(base).sum(axis=0)
    own_s = np.maximum(excess_s - np.sort(excess_s)[(excess_s.size - 1) // 2], 0.0)  # the lower median
    uneven = useful_s / float((tree(one).useful_s.sum(axis=0) + own_s).max())
    assert found.load_balance * uneven == pytest.approx(grown.load_balance.value)
    inside = grown.input.value * grown.sequential.value * grown.orchestration.value * grown.serialisation.value
    assert found.serialisation == pytest.approx(inside * uneven)
    outside = found.outside_communication
    assert outside.parallel == pytest.approx(found.parallel + sum(outside.added.values()))
    assert outside.parallel == pytest.approx(outside.load_balance * outside.communication)


def test_worked_example() -> None:
    """Two ranks, ten steps: 10 + 20 ms of useful work, 10 ms more on rank 1, transfers of 5 ms."""
    one = window(2, 10, forward=0.010, backward=0.020 + late(2, 10, rank=1, by_s=0.010), bucket_s=0.005)
    found = efficiencies(one)
    assert found.load_balance == pytest.approx(35 / 40)
    assert found.communication == pytest.approx(40 / 45)
    assert found.transfer == pytest.approx(40 / 45)
    assert found.serialisation == pytest.approx(1.0)


def test_an_evaluation_on_rank_0_falls_on_another_factor_by_each_count() -> None:
    """30 ms of work in each of ten steps, and 600 ms of evaluation on rank 0 in one of them."""
    one = window(4, 10, backward=0.030, evaluation=only(4, 10, seconds=0.6, rank=0, every=10, first=9))
    found, outside = efficiencies(one), efficiencies(one).outside_communication
    assert (found.load_balance, found.communication) == pytest.approx((1.0, 0.3 / 0.9))
    assert (outside.load_balance, outside.communication) == pytest.approx((0.45 / 0.9, 1.0))
    assert outside.added == pytest.approx({"evaluation": 0.15 / 0.9})


def test_a_single_rank_waits_for_nobody() -> None:
    found = efficiencies(window(1, 10, forward=0.03, other=0.01, bucket_s=0.005))
    assert (found.load_balance, found.transfer) == pytest.approx((1.0, 1.0))
    assert found.parallel == pytest.approx(30 / 45)


def test_scaling_is_the_trees() -> None:
    small, large = window(2, 10, forward=0.030), window(4, 10, forward=0.040)
    found = against_reference(efficiencies(large), efficiencies(small))
    grown = tree(large, small).efficiency
    assert grown is not None
    assert grown.computational is not None
    assert grown.global_ is not None
    assert found.computational == pytest.approx(grown.computational.value)
    assert found.global_ == pytest.approx(grown.global_.value)


def test_without_samples_there_is_no_scaling() -> None:
    unknown = efficiencies(window(2, 10, forward=0.030, samples=np.nan))
    assert unknown.useful_s_per_sample is None
    assert against_reference(unknown, efficiencies(window(2, 10, forward=0.030))).computational is None


def test_nothing_useful_is_no_efficiency() -> None:
    assert pop(window(2, 10, forward=0.0, input=0.01)) is None
