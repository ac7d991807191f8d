"""The replay is checked on steps that it was not fitted to: small where they hang together, large where they cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.windows import Call, anything, jitter, late, recorded, relabelled, stretched, window

from allpull.replay.engine import replay, replay_each
from allpull.replay.held_out import held_out, held_out_error
from allpull.replay.window import Window

STEP_S = 0.080  # of the windows here: forward 20 ms, backward 40, optimizer 5, and 15 of transfer
WORK = {"forward": 0.020, "backward": 0.040, "optimizer": 0.005}


def error(one: Window) -> float:
    found = held_out_error(one)
    assert found is not None
    return found


def test_steps_that_are_alike_predict_each_other() -> None:
    barrier = Call(use="barrier", transfer_s=0.001)
    one = window(3, 12, **WORK, bucket_s=0.015, tail_s=[0.0, 0.001, 0.002], calls=[barrier])
    assert error(one) == pytest.approx(0, abs=1e-12)


def test_a_late_rank_is_no_error_for_what_ranks_did_is_given() -> None:
    one = window(3, 12, forward=0.020 + late(3, 12, rank=1, by_s=0.1, every=3), backward=0.040, bucket_s=0.015)
    assert error(one) == pytest.approx(0, abs=1e-12)


def test_a_half_is_replayed_with_the_transfers_of_the_other() -> None:
    one = window(2, 12, **WORK, bucket_s=np.tile([0.010, 0.020], 6)[:, None], tail_s=np.tile([0.0, 0.002], 6)[:, None])
    held = held_out(one)
    assert held.reductions is not None
    assert held.reductions.seconds[:, 0] == pytest.approx(np.tile([0.020, 0.010], 6))
    assert held.reductions.tail_s[:, 1] == pytest.approx(np.tile([0.002, 0.0], 6))
    assert error(one) == pytest.approx((12 / 75 + 12 / 87) / 2)


def test_calls_are_held_out_by_what_they_are() -> None:
    calls = [
        Call(use="all_reduce", transfer_s=np.tile([0.001, 0.003], 4)[:, None]),
        Call(use="barrier", at="end", transfer_s=0.050, steps=[2]),
    ]
    held = held_out(window(2, 8, **WORK, calls=calls))
    assert held.transfer_s[held.use == 0][:, 0] == pytest.approx(np.tile([0.003, 0.001], 4))
    assert held.transfer_s[held.use == 1].tolist() == [[0.050, 0.050]]


def test_chance_averages_out() -> None:
    wire_s = 0.015 + jitter(1, 100, sd_s=0.003)
    assert error(window(4, 100, **WORK, bucket_s=wire_s)) < 0.01


def test_steps_of_a_rank_that_counts_them_from_elsewhere_do_not_fit() -> None:
    """Rank 1 is three steps behind: it seems that rank 0 goes on without waiting for it."""
    one = window(2, 20, **WORK, bucket_s=0.015)
    ends_s = STEP_S * np.arange(1, 21)[:, None] + np.array([0.0, 3 * STEP_S])
    apart = recorded(replace(one, begin_s=np.array([0.0, 3 * STEP_S])), ends_s)
    assert replay(apart).total_s == pytest.approx(apart.measured_s)  # as described, all is well
    assert error(apart) == pytest.approx(3 / 2)


def test_a_clock_that_jumped_does_not_fit() -> None:
    one = window(2, 20, **WORK, bucket_s=0.015)
    ends_s = STEP_S * np.arange(1, 21)[:, None] + np.array([0.0, 1000.0])
    assert error(recorded(replace(one, begin_s=np.array([0.0, 1000.0])), ends_s)) > 1000


@given(st.integers(0, 2**32))
def test_steps_one_by_one_end_as_they_do_in_a_row(seed: int) -> None:
    one = anything(seed)
    ends_s = replay(one).end_s
    begins_s = np.concatenate([one.begin_s[None], ends_s[:-1]])
    assert replay_each(one, begins_s) == pytest.approx(ends_s, abs=1e-12)


@given(st.integers(0, 2**32), st.permutations(range(5)), st.floats(1e-3, 1e3))
def test_names_of_ranks_and_units_of_time_mean_nothing(seed: int, order: list[int], factor: float) -> None:
    one = anything(seed, steps=8)
    found = held_out_error(one)
    renamed = relabelled(one, [rank for rank in order if rank < one.ranks])
    assert held_out_error(renamed) == (None if found is None else pytest.approx(found, rel=1e-6, abs=1e-9))
    assert held_out_error(stretched(one, factor)) == (
        None if found is None else pytest.approx(found, rel=1e-6, abs=1e-9)
    )


def test_too_few_steps_tell_nothing() -> None:
    assert held_out_error(window(2, 3, **WORK, bucket_s=0.015)) is None
    assert held_out_error(window(2, 8, **WORK, reduces=False)) is None
