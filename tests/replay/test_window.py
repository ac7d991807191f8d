"""Sums over the events of steps, whatever events they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.windows import window

from allpull.replay.window import STEP


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=30), seed=st.integers(0, 2**32 - 1))
def test_sums_by_step_are_those_of_numpy_to_the_last_digit(counts: list[int], seed: int) -> None:
    step_of = np.repeat(np.arange(len(counts)), counts)
    one = replace(window(3, len(counts)), step_of=step_of, kind=np.full(step_of.size, STEP, dtype=np.int8))
    values = np.random.default_rng(seed).lognormal(size=(2, step_of.size, 3))
    added = np.zeros((len(counts), 3))
    for each in values:
        np.add.at(added, step_of, each)
    assert np.array_equal(one.sums(*values), added)
