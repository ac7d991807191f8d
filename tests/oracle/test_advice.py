"""Item 13: what follows rank 0 is the program's work, uneven evaluation has a name, and small is said to be small."""

from __future__ import annotations

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.simulator import simulate
from tests.oracle.training import Device, even

PLACES = pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])


@pytest.mark.parametrize("phase", ["other", "optimizer"])
def test_work_of_rank_0_is_not_its_hosts_fault(judge: Judge, phase: str) -> None:
    """``if rank == 0``: logging after each step, outside of every known phase or around the optimizer."""
    healthy = even(ranks=8, hosts=2)
    judged = judge(healthy.later(phase, 0.030, rank=0), healthy)
    found = [finding for finding in judged.priced if finding.ranks == [0]]
    assert len(found) == 1, judged.said()
    assert_priced(found[0], judged.truth)
    assert "--exclude" not in found[0].remedy


@PLACES
def test_work_of_rank_0_every_tenth_step(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=8, hosts=2, steps=62, device=device)
    judged = judge(healthy.later("other", 0.300, rank=0, steps=slice(3, None, 10)), healthy)
    found = [finding for finding in judged.priced if finding.ranks == [0]]
    assert len(found) == 1, judged.said()
    assert_priced(found[0], judged.truth)
    assert "--exclude" not in found[0].remedy


def test_another_rank_that_is_slow_is_still_left_out(judge: Judge) -> None:
    healthy = even(ranks=8, hosts=2)
    judged = judge(healthy.later("backward", 0.030, rank=5), healthy)
    found = judged.finding("slow-rank", ranks=[5])
    assert_priced(found, judged.truth)
    assert "--exclude=node2" in found.remedy


@PLACES
def test_uneven_evaluation_by_all(judge: Judge, device: Device | None) -> None:
    """All evaluate for 0.2 s after every tenth step, and rank 3 for longer, while the others wait."""
    even_one = even(ranks=4, steps=62, device=device)
    every_tenth = slice(10, None, 10)
    even_one = even_one.later("evaluation", 0.2, rank=slice(None), steps=every_tenth)
    extra = 1.13 if device is None else 0.97
    uneven = even_one.later("evaluation", extra, rank=3, steps=every_tenth)
    shared = even_one.later("evaluation", extra / 4, rank=slice(None), steps=every_tenth)
    judged = judge(uneven, even_one)
    if_shared = simulate(uneven).seconds(2) / simulate(shared).seconds(2)
    found = [finding for finding in judged.priced if finding.ranks == [3]]
    assert len(found) == 1, judged.said()
    assert "evaluation" in found[0].rule
    assert found[0].gain is not None
    # Either price is right: rank 3 like the others, or the same work shared by all; the interval has both.
    assert found[0].gain.value == pytest.approx(if_shared, rel=0.03)
    assert found[0].gain.low is not None
    assert found[0].gain.high is not None
    assert found[0].gain.low <= 1.01 * if_shared
    assert 0.99 * judged.truth <= found[0].gain.high <= 1.1 * judged.truth


@PLACES
def test_a_small_loss_is_called_small(judge: Judge, device: Device | None) -> None:
    """1.5 ms of 100, far above the noise: no finding, perhaps, but no silence."""
    healthy = even(ranks=4, steps=62, jitter=0.002, device=device)
    judged = judge(healthy.later("backward", 0.0015, rank=2), healthy)
    assert 1.01 < judged.truth < 1.02
    named = [finding for finding in judged.priced if finding.ranks == [2]]
    assert named or any("rank 2" in note.lower() and "small" in note for note in judged.explained.notes), judged.said()
