"""Levels of work are those of most steps, however much they change, and whatever stalls."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.replay.whatif.levels import levels

STEPS = 200


def test_a_line_is_found_whole_where_it_rises_to_ten_times_and_steps_stall() -> None:
    rising = np.linspace(3.0, 30.0, STEPS)
    stalled = rising.copy()
    stalled[[17, 83, 150]] += 500.0
    assert levels(rising, None) == pytest.approx(rising)
    assert levels(stalled, None)[[0, -1]] == pytest.approx(rising[[0, -1]], rel=0.05)


def test_both_sides_of_a_change_have_their_own_level() -> None:
    series = np.where(np.arange(STEPS) < 60, 40.0, 10.0)
    assert levels(series, (60,))[[0, -1]].tolist() == [40.0, 10.0]
