"""What counts as prepared for an epoch, of work that first steps have outside of known phases."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.analyse.epochs.preparation import KNOWN, prepared_ns
from allpull.analyse.steps.pauses import Moments

EPOCH, STEPS = 20, 100
FIRST = range(0, STEPS, EPOCH)


def steps(rest_ns: Moments) -> dict[str, Moments]:
    """Records of steps with a forward pass of 1 ms, and ``rest_ns`` (steps,) in no known phase."""
    known = {name: np.zeros(STEPS, dtype=np.int64) for name in KNOWN}
    known["forward_ns"] += 1_000_000
    ends = np.cumsum(rest_ns + 1_000_000)
    return {**known, "step": np.arange(STEPS), "begin_ns": ends - rest_ns - 1_000_000, "end_ns": ends}


@pytest.mark.parametrize(
    ("paused", "is_prepared"),
    [
        pytest.param(FIRST, True, id="where epochs begin"),
        pytest.param([*FIRST, 7, 33, 56, 71], True, id="and seldom elsewhere"),
        pytest.param(range(0, STEPS, 10), False, id="once in ten steps"),
        pytest.param(range(STEPS), False, id="in every step"),
    ],
)
def test_what_a_program_does_now_and_then_is_not_prepared_for_an_epoch(paused: list[int], is_prepared: bool) -> None:
    rest_ns = np.random.default_rng(0).integers(0, 100_000, STEPS)
    rest_ns[list(paused)] += 200_000_000
    prepared = prepared_ns(steps(rest_ns), list(FIRST))
    assert (prepared[list(FIRST)] > 190_000_000).all() == is_prepared
    assert (prepared[list(FIRST)] > 1_000_000).any() == is_prepared


def test_a_single_epoch_of_one_step_prepares_nothing() -> None:
    one = {name: values[:1] for name, values in steps(np.full(STEPS, 1_000)).items()}
    assert prepared_ns(one, [0]).tolist() == [0]
