"""The replay against numbers worked by hand, against an event-driven simulation, and in what must always hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.oracle import simulate
from tests.replay.windows import Call, anything, late, only, relabelled, stretched, window

from allpull.replay import engine
from allpull.replay.engine import lane_s, replay, replay_each
from allpull.replay.window import Window

SEEDS = st.integers(0, 2**32 - 1)
EXACT = 1e-12


def ends_ms(one: Window) -> list[list[float]]:
    return (replay(one).end_s * 1e3).round(9).tolist()


def test_ranks_meet_at_the_reduction_and_leave_it_together() -> None:
    one = window(2, 2, forward=[0.010, 0.030], backward=0.020, optimizer=[0.001, 0.002], bucket_s=0.004)
    # 10 + 20 | 30 + 20 → 50 + 4; then 1 | 2; the next step begins at 55 | 56
    assert ends_ms(one) == [[55, 56], [56 + 50 + 4 + 1, 56 + 50 + 4 + 2]]
    assert (replay(one).step_s * 1e3).tolist() == pytest.approx([56, 56])


def test_buckets_follow_each_other_on_one_lane() -> None:
    """Ready at 10, 20 and 30 ms, 15 ms each: 10 → 25 → 40 → 55; the reduction ends 25 ms after backward."""
    one = window(1, 1, backward=0.030, bucket_s=[0.015, 0.015, 0.015], lead_s=[0.020, 0.010, 0.0])
    assert ends_ms(one) == [[55]]


def test_a_bucket_waits_for_the_last_rank_to_have_it_ready() -> None:
    """Rank 1 is late in the middle of backward: the first bucket starts at 10 ms all the same, the second at 60."""
    leads = np.array([[0.020, 0.070], [0.010, 0.010], [0.0, 0.0]])
    one = window(2, 1, backward=[0.030, 0.080], bucket_s=[0.015, 0.004, 0.004], lead_s=leads)
    # first: max(10, 10) → 25; second: max(20, 70) → 74; third: max(30, 80) → 84
    assert ends_ms(one) == [[84, 84]]


def test_a_busy_network_hides_lateness() -> None:
    """Four buckets of 50 ms in flight hide a rank that is 40 ms late in the end (DESIGN §4, "Step level")."""
    four = {"bucket_s": [0.050] * 4, "lead_s": [0.030, 0.020, 0.010, 0.0]}
    on_time = window(2, 1, forward=0.010, backward=0.040, **four)
    leads = np.array([[0.030, 0.070], [0.020, 0.060], [0.010, 0.050], [0.0, 0.0]])
    delayed = window(2, 1, forward=0.010, backward=[0.040, 0.080], **{**four, "lead_s": leads})
    assert replay(delayed).total_s == pytest.approx(replay(on_time).total_s, abs=EXACT)


def test_the_root_of_a_broadcast_does_not_wait_for_those_it_sends_to() -> None:
    sent = Call(use="broadcast", root=0, transfer_s=[0.001, 0.002])
    one = window(2, 1, input=[0.005, 0.020], forward=0.010, reduces=False, calls=[sent])
    assert ends_ms(one) == [[5 + 1 + 10, 20 + 10]]  # rank 1 comes after the data did, which took until 7 ms
    other = window(2, 1, input=[0.020, 0.005], forward=0.010, reduces=False, calls=[sent])
    assert ends_ms(other) == [[20 + 1 + 10, 20 + 2 + 10]]


def test_a_call_that_was_made_early_is_done_early() -> None:
    """Issued 8 ms before the rank asks for it, 5 ms long: nothing is left to wait for; with 2 ms, 3 ms are."""
    for early_s, ends in ((0.008, 10), (0.002, 13)):
        call = Call(use="all_reduce", at="end", early_s=early_s, transfer_s=0.005)
        assert ends_ms(window(2, 1, optimizer=0.010, reduces=False, calls=[call])) == [[ends, ends]]


def test_calls_in_flight_together_follow_each_other() -> None:
    """Three of 5 ms, started together; computing hides 10 ms of it, or 4 ms, and the last ends at 15 either way."""
    calls = [Call(use="all_reduce", at="end", early_s=0.010, transfer_s=takes) for takes in (0.010, 0.0, 0.005)]
    one = window(2, 1, optimizer=0.010, reduces=False, calls=calls, recorded_s=0.015)
    assert ends_ms(one) == [[15, 15]]
    assert one.follows.T.tolist() == [[False, True, True, False]] * 2
    shorter = replace(one, work={"optimizer": one.work["optimizer"] * 0.4}, early_s=one.early_s * 0.4)
    assert ends_ms(shorter) == [[15, 15]]
    apart = [replace(call, use=f"all_reduce {place}") for place, call in enumerate(calls)]
    lanes = window(2, 1, optimizer=0.010, reduces=False, calls=apart, recorded_s=0.010)
    assert ends_ms(lanes) == [[10, 10]]


@given(SEEDS)
def test_calls_in_flight_together_obey_their_equation_on_each_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, steps, count = (int(most) for most in rng.integers(1, (5, 6, 5)))
    shape = (steps, ranks)
    early_s, takes_s = (rng.uniform(0, 0.02, (count, *shape)) for _ in range(2))
    uses = [f"kind {rng.integers(2)}" for _ in range(count)]
    calls = [Call(use=uses[k], at="end", early_s=early_s[k], transfer_s=takes_s[k]) for k in range(count)]
    work_s = rng.uniform(0.0, 0.05, shape)
    one = window(ranks, steps, optimizer=work_s, reduces=False, calls=calls, recorded_s=0.0)
    now_s, ends_s = [0.0] * ranks, []
    for step in range(steps):
        now_s = [now_s[rank] + work_s[step, rank] for rank in range(ranks)]
        over_s = now_s
        for k, use in enumerate(uses):
            last_s = max(now_s[rank] - early_s[k, step, rank] for rank in range(ranks))
            follows = k > 0 and uses[k - 1] == use
            begun_s = [max(last_s, over_s[rank]) if follows else last_s for rank in range(ranks)]
            over_s = [begun_s[rank] + takes_s[k, step, rank] for rank in range(ranks)]
            now_s = [max(now_s[rank], over_s[rank]) for rank in range(ranks)]
        ends_s.append(now_s)
    for faster_in_order in (0, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "FASTER_IN_ORDER", faster_in_order)
            assert replay(one).end_s == pytest.approx(np.array(ends_s), rel=EXACT, abs=EXACT)


def test_without_meetings_ranks_drift_apart() -> None:
    one = window(2, 3, forward=[0.010, 0.020], reduces=False)
    assert ends_ms(one) == [[10, 20], [20, 40], [30, 60]]


def test_a_barrier_after_evaluation_makes_all_wait_for_the_rank_that_evaluates() -> None:
    scored = only(4, 10, seconds=0.5, rank=0, every=5)
    barrier = Call(use="barrier", at="begin", steps=(0, 5))
    one = window(4, 10, evaluation=scored, forward=0.010, calls=[barrier])
    assert replay(one).total_s == pytest.approx(2 * 0.5 + 10 * 0.010)


def test_no_steps_take_no_time() -> None:
    played = replay(window(3, 0, forward=0.010))
    assert (played.total_s, played.step_s.shape, played.end_s.shape) == (0.0, (0,), (0, 3))


@given(SEEDS)
def test_it_agrees_with_an_event_driven_simulation(seed: int) -> None:
    one = anything(seed)
    assert replay(one).end_s == pytest.approx(simulate(one), rel=EXACT, abs=EXACT)


@given(SEEDS, st.sampled_from([0, 1000]), st.sampled_from([1, 8, 2**16]))
def test_stretches_side_by_side_are_those_in_order(seed: int, faster_in_order: int, cached_cells: int) -> None:
    one = anything(seed)
    ends_s = simulate(one)
    begins_s = np.concatenate([one.begin_s[None], ends_s[:-1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "FASTER_IN_ORDER", faster_in_order)
        patch.setattr(engine, "CACHED_CELLS", cached_cells)
        assert replay(one).end_s == pytest.approx(ends_s, rel=EXACT, abs=EXACT)
        assert replay_each(one, begins_s) == pytest.approx(ends_s, rel=EXACT, abs=EXACT)


@given(SEEDS)
def test_a_window_made_of_the_equations_is_reproduced_exactly(seed: int) -> None:
    one = anything(seed)
    played = replay(one)
    assert played.total_s == pytest.approx(one.measured_s, rel=EXACT)
    assert np.diff(played.end_s, axis=0, prepend=one.begin_s[None]) == pytest.approx(one.wall_s, rel=1e-9, abs=EXACT)


@given(SEEDS)
def test_increments_sum_to_the_whole_and_never_go_back(seed: int) -> None:
    played = replay(anything(seed))
    assert played.step_s.sum() == pytest.approx(played.total_s, rel=EXACT)
    assert (played.step_s >= 0).all()


@given(SEEDS)
def test_the_closed_form_of_the_lane_is_its_recurrence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ready_s, seconds = rng.random(6), rng.random(6) * (rng.random(6) < 0.7)
    ended_s = -np.inf
    for ready, takes in zip(ready_s, seconds, strict=True):
        ended_s = max(ready, ended_s) + takes
    one = window(1, 1, backward=1.0, bucket_s=seconds[None, :], lead_s=1.0 - ready_s)
    assert one.reductions is not None
    assert (ready_s + lane_s(one.reductions)[0]).max() == pytest.approx(ended_s, abs=EXACT)


@given(SEEDS, st.permutations(range(5)))
def test_names_of_ranks_mean_nothing(seed: int, order: list[int]) -> None:
    one = anything(seed)
    kept = [rank for rank in order if rank < one.ranks]
    assert replay(relabelled(one, kept)).end_s == pytest.approx(replay(one).end_s[:, kept], rel=EXACT)


@given(SEEDS, st.floats(1e-3, 1e3))
def test_time_has_no_unit(seed: int, factor: float) -> None:
    one = anything(seed)
    assert replay(stretched(one, factor)).end_s == pytest.approx(replay(one).end_s * factor, rel=1e-9)


@given(SEEDS, st.floats(0, 1e3))
def test_a_shift_of_all_clocks_shifts_all_ends(seed: int, shift_s: float) -> None:
    one = anything(seed)
    shifted = replay(replace(one, begin_s=one.begin_s + shift_s)).end_s
    assert shifted - shift_s == pytest.approx(replay(one).end_s, rel=1e-9, abs=1e-9)


@given(SEEDS, st.data())
def test_less_work_makes_nothing_later(seed: int, data: st.DataObject) -> None:
    one = anything(seed)
    name = data.draw(st.sampled_from(sorted(one.work)))
    share = np.random.default_rng(seed).random((one.events, one.ranks))
    less = replace(one, work={**one.work, name: one.work[name] * share})
    assert (replay(less).end_s <= replay(one).end_s + EXACT).all()


def test_one_slow_rank_slows_all_by_what_it_is_late() -> None:
    usual = {"forward": 0.010, "optimizer": 0.001, "bucket_s": 0.002}
    healthy = window(8, 50, backward=0.020, **usual)
    slow = window(8, 50, backward=0.020 + late(8, 50, rank=3, by_s=0.040), **usual)
    assert replay(slow).total_s - replay(healthy).total_s == pytest.approx(50 * 0.040)
