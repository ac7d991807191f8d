"""Ranks that are delayed one at a time, among ranks that vary anyhow: that variation stays when the delays end."""

from __future__ import annotations

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.training import Device, Training, even


def delayed_in_turn(healthy: Training, seconds: float, seed: int, *, exponential: bool = False) -> Training:
    """In each step one rank takes ``seconds`` longer, or that times an exponential number."""
    rng = np.random.default_rng(seed)
    for step in range(healthy.steps):
        factor = float(rng.exponential()) if exponential else 1.0
        healthy = healthy.later("forward", seconds * factor, rank=int(rng.integers(healthy.ranks)), steps=step)
    return healthy


@pytest.mark.parametrize("device", [None, pytest.param(Device(), marks=pytest.mark.slow)], ids=["cpu", "device"])
@pytest.mark.parametrize(
    ("ranks", "jitter", "seconds", "exponential"),
    [(7, 0.066, 0.020, False), (5, 0.052, 0.028, False), (7, 0.067, 0.033, True), (12, 0.05, 0.030, True)],
)
def test_jitter_stays_when_delays_end(
    judge: Judge, ranks: int, jitter: float, seconds: float, exponential: bool, device: Device | None
) -> None:
    healthy = even(ranks=ranks, steps=66, jitter=jitter, device=device)
    judged = judge(delayed_in_turn(healthy, seconds, 5, exponential=exponential), healthy)
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.0)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.025)


def test_delays_among_ranks_that_all_vary(judge: Judge) -> None:
    """All are late by an exponential law anyway, so that 20 ms more on one cost 9 ms: the interval begins there.

    Whether that variation ends, too, the data cannot tell.
    """
    healthy = even(ranks=8, steps=102)
    rng = np.random.default_rng(3)
    for phase in ("forward", "backward"):
        healthy = healthy.later(phase, rng.exponential(0.004, (8, 102)), rank=slice(None))
    judged = judge(delayed_in_turn(healthy, 0.020, 4), healthy)
    assert 1.08 < judged.truth < 1.10
    assert_priced(judged.finding("rotating-imbalance", ranks=[]), judged.truth, 0.0)


@pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])
@pytest.mark.parametrize("late_s", [0.028, 0.060])
def test_beside_a_rank_that_is_always_late(judge: Judge, late_s: float, device: Device | None) -> None:
    """The price is that of the remedy alone, or the title names who must be mended first."""
    healthy = even(ranks=4, steps=120, jitter=0.03, device=device)
    always = healthy.later("forward", late_s, rank=3)
    both = delayed_in_turn(always, 0.045, 3)
    alone, all_gone = judge(both, always), judge(both, healthy)
    found = alone.finding("rotating-imbalance", ranks=[])
    named = "priced with rank 3 mended first" in found.title
    rank_3 = [one for one in alone.priced if one.rule == "slow-rank"]
    assert not named or rank_3, alone.said()
    truth = alone.truth
    if named:
        truth = judge(delayed_in_turn(healthy, 0.045, 3), healthy).truth
    assert_priced(found, truth, 0.02)
    if not rank_3:
        assert_priced(alone.finding("hidden-losses", ranks=[3]), all_gone.truth, 0.02)
