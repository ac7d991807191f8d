"""Ranks that vary as much downwards as upwards: what can be gained is equal work in each step, however few they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.training import Device, Times, Training, even


def shared_out(training: Training) -> Training:
    """All ranks take as long in each step, and as much in total."""

    def equal(times: Times) -> Times:
        return np.broadcast_to(times.mean(axis=0), times.shape).copy()

    passes = tuple(
        dataclasses.replace(one, forward=equal(one.forward), backward=equal(one.backward)) for one in training.passes
    )
    return dataclasses.replace(training, passes=passes, optimizer=equal(training.optimizer))


@pytest.mark.parametrize(("ranks", "jitter", "seed"), [(6, 0.04, 5), (6, 0.12, 6)])
def test_six_equal_ranks_gain_equal_work(judge: Judge, ranks: int, jitter: float, seed: int) -> None:
    """Each phase varies by 4 %: 1.07 was said of ranks that gain 1.035 if their work is equal."""
    varying = even(ranks=ranks, hosts=2, steps=92, jitter=jitter, device=Device(), seed=seed)
    judged = judge(varying, shared_out(varying))
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.0)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.01)


@pytest.mark.parametrize("device", [None, pytest.param(Device(), marks=pytest.mark.slow)], ids=["cpu", "device"])
@pytest.mark.parametrize(("ranks", "jitter"), [(4, 0.15), (6, 0.12)])
def test_work_that_varies_on_few_ranks_is_priced_by_equal_work(
    judge: Judge, ranks: int, jitter: float, device: Device | None
) -> None:
    """Where the shape of the variation is less clear, the price lies between that and the end of all variation."""
    varying = even(ranks=ranks, steps=92, jitter=jitter, device=device, seed=6)
    judged = judge(varying, shared_out(varying))
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.0)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.055)
