"""All ranks slow down half way, beside another loss: that one takes as long before as after, and is not scaled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.training import Device, Training, even

ALL = slice(None)
PLACES = pytest.mark.parametrize(
    "device", [None, pytest.param(Device(), marks=pytest.mark.slow)], ids=["cpu", "device"]
)
FROM = slice(62, None)


def slower(training: Training, share: float) -> Training:
    """All ranks compute longer by ``share`` from half way on."""
    for phase in ("forward", "backward"):
        training = training.later(phase, share * getattr(training.passes[0], phase)[:, FROM], rank=ALL, steps=FROM)
    return training.later("optimizer", share * training.optimizer[:, FROM], rank=ALL, steps=FROM)


def drifting(ranks: int, device: Device | None, jitter: float = 0.01) -> tuple[Training, Training]:
    healthy = even(ranks=ranks, steps=122, jitter=jitter, device=device)
    return slower(healthy, 0.5), healthy


def in_both(drifts: tuple[Training, Training], longer: Callable[[Training], Training]) -> tuple[Training, Training]:
    """The other loss, with and without the drift."""
    return longer(drifts[0]), longer(drifts[1])


def assert_close(judge: Judge, both: tuple[Training, Training], tolerance: float) -> None:
    """The truth is in the interval, and the value within ``tolerance`` of it, relatively."""
    judged = judge(*both)
    found = judged.finding("drift", ranks=[])
    assert found.gain is not None
    assert_priced(found, judged.truth, 0.0)
    assert found.gain.value == pytest.approx(judged.truth, rel=tolerance)


@PLACES
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_constant_delay_of_one_rank_is_not_part_of_it(judge: Judge, noise: float, device: Device | None) -> None:
    """The price of 1.16 was given as 1.24: the delay of 60 ms was scaled as well."""
    delay_s = 0.060 * (1 + noise * np.random.default_rng(4).standard_normal(122))
    both = in_both(drifting(8, device), lambda one: one.later("backward", delay_s, rank=1))
    assert_close(judge, both, 0.01)


@PLACES
def test_a_rank_that_is_slow_by_a_factor_drifts_by_more(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=4, steps=122, device=device)
    healthy = healthy.later("backward", 0.8 * healthy.passes[0].backward[2], rank=2)
    assert_close(judge, (slower(healthy, 0.5), healthy), 0.005)


@PLACES
def test_stalls_do_not_scale(judge: Judge, device: Device | None) -> None:
    def stalled(one: Training) -> Training:
        for step in (20, 70, 90, 110):
            one = one.later("backward", 1.0, rank=ALL, steps=step)
        return one

    assert_close(judge, in_both(drifting(8, device), stalled), 0.005)


@PLACES
def test_delays_in_turn_do_not_scale(judge: Judge, device: Device | None) -> None:
    def delayed(one: Training) -> Training:
        for step, rank in enumerate(np.random.default_rng(5).integers(8, size=122).tolist()):
            one = one.later("forward", 0.040, rank=rank, steps=step)
        return one

    assert_close(judge, in_both(drifting(8, device), delayed), 0.005)


def test_a_rank_that_becomes_late_meanwhile_is_late_by_itself(judge: Judge) -> None:
    """What its work grows by beyond the others is no drift of all."""
    both = in_both(drifting(4, None), lambda one: one.later("backward", 0.050, rank=3, steps=FROM))
    assert_close(judge, both, 0.005)


@PLACES
def test_jitter_scales_with_the_work(judge: Judge, device: Device | None) -> None:
    """Of sixteen ranks that vary by 5 %, the last of a step is late by half as much again."""
    assert_close(judge, drifting(16, device, jitter=0.05), 0.01)
