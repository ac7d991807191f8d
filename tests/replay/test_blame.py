"""All waiting is charged, to who was waited for and to what made them late: planted delays come back in full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyse.program import Program, late, records
from tests.replay.windows import Call, anything, window

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.reductions import every_reduction
from allpull.analyse.collectives.waiting import reductions
from allpull.replay.blame import TRANSFER, Blame, blame
from allpull.replay.engine import event_times, replay
from allpull.replay.leave_one_out import beyond_others, others_median
from allpull.replay.recording.build import record_window
from allpull.replay.window import CALL, REDUCE, STEP, Window
from allpull.rundir.read.run import RunData

seeds = st.integers(0, 2**32)
PROPERTY = settings(max_examples=60)


def window_of(run: RunData) -> Window:
    found = record_window(AlignedRun(run))
    assert isinstance(found, Window), found
    return found


def of(program: Program) -> Blame:
    return blame(window_of(records(program)))


def charged_ms(found: Blame) -> dict[str, list[float]]:
    """By phase and culprit, the total in ms; phases to which nothing is charged are absent."""
    parts = {**found.by_phase, "unattributed": found.unattributed_s}
    return {
        name: [round(1000 * float(one), 3) for one in values] for name, values in parts.items() if values.max() > 1e-6
    }


def assert_closes(one: Window, found: Blame) -> None:
    assert found.caused_s.sum() == pytest.approx(found.delay_s.sum(), abs=1e-9)
    rows = sum(found.by_phase.values(), start=found.unattributed_s)
    assert rows == pytest.approx(found.caused_s.sum(axis=1), abs=1e-9)
    assert (np.diag(found.caused_s) == 0).all()
    for values in (found.caused_s, found.unattributed_s, found.delay_s, found.transfer_s, *found.by_phase.values()):
        assert (values >= -1e-12).all()
    worked_s = sum((one.per_step(name) for name in one.work), start=np.zeros(one.wall_s.shape))
    assert found.delay_s + found.transfer_s == pytest.approx(one.wall_s - worked_s, abs=1e-9)
    assert (found.last >= 0).all()
    assert found.last.sum() <= found.meetings


# What always holds


@PROPERTY
@given(seed=seeds)
def test_what_is_charged_is_what_was_waited(seed: int) -> None:
    one = anything(seed)
    assert_closes(one, blame(one))


@PROPERTY
@given(seed=seeds)
def test_a_walk_ends_where_a_replay_ends(seed: int) -> None:
    one = anything(seed)
    times = event_times(one)
    assert times.leave_s[one.kind == STEP] == pytest.approx(replay(one).end_s, abs=1e-12)
    assert (times.blocked_s >= 0).all()
    wait_s = times.delay_s(one)
    assert (wait_s <= times.blocked_s + 1e-12).all()
    rows = np.flatnonzero(times.culprit >= 0)
    assert wait_s[rows, times.culprit[rows]] == pytest.approx(np.zeros(rows.size), abs=1e-12)  # the last waits for none


@PROPERTY
@given(values=st.lists(st.lists(st.integers(-5, 5), min_size=5, max_size=5), min_size=1, max_size=4), data=st.data())
def test_medians_of_others_are_those_of_a_plain_loop(values: list[list[int]], data: Any) -> None:
    table = np.array(values, dtype=float)
    rank = np.array([data.draw(st.integers(0, 4)) for _ in values])
    present = np.array([[data.draw(st.booleans()) for _ in range(5)] for _ in values])
    present[np.arange(len(values)), rank] = True
    found = others_median(table, rank, present)
    for row, one in enumerate(rank):
        others = [table[row, other] for other in range(5) if other != one and present[row, other]]
        assert found[row] == (np.median(others) if others else 0)
        for other in range(5):
            expected = table[row, other] - np.median(np.delete(table[row], other))
            assert beyond_others(table)[row, other] == expected


@settings(max_examples=25)
@given(order=st.permutations(range(4)), seed=seeds)
def test_other_numbers_of_ranks_give_the_same_charges(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    work = {name: rng.uniform(1, 30, (5, 4)) for name in ("input", "forward", "backward")}
    plain = Program(steps=5, work=work, meet="all_reduce", tail_ms=rng.uniform(0, 1, (5, 4)))
    tails = np.asarray(plain.tail_ms)[:, order]
    renamed = replace(plain, work={name: times[:, order] for name, times in work.items()}, tail_ms=tails)
    one, other = of(plain), of(renamed)
    assert other.caused_s == pytest.approx(one.caused_s[np.ix_(order, order)], abs=1e-9)
    assert other.unattributed_s == pytest.approx(one.unattributed_s[order], abs=1e-9)
    assert other.late_s == pytest.approx(one.late_s[:, order], abs=1e-9)
    assert other.last.tolist() == one.last[order].tolist()
    for name, values in one.by_phase.items():
        assert other.by_phase[name] == pytest.approx(values[order], abs=1e-9), name


def test_a_shift_of_all_clocks_changes_nothing() -> None:
    program = Program(work={"input": late(Program(), 2, 20, 1)})
    one, other = of(program), of(replace(program, base_ns=2 * 10**17 + 7))
    assert other.caused_s == pytest.approx(one.caused_s, abs=1e-9)
    assert other.late_s == pytest.approx(one.late_s, abs=1e-9)


def test_one_rank_waits_for_nobody() -> None:
    found = of(Program(ranks=1))
    assert found.caused_s.tolist() == [[0]]
    assert found.delay_s.sum() == 0
    assert found.transfer_s.sum() > 0
    assert (found.late_s == 0).all()
    assert found.meetings == 0


# Planted delays


PLACES = [
    ("input", "input", 1),
    ("copy", "copy", 0),
    ("forward", "forward", 20),
    ("backward", "backward", 40),
    ("pause", "other", 0),
    ("late_pause", "other", 0),
    ("evaluation", "evaluation", 0),
    ("checkpoint", "checkpoint", 0),
]


@pytest.mark.parametrize("meet", [None, "all_reduce"])
@pytest.mark.parametrize("level", ["bucket", "step"])
@pytest.mark.parametrize(("where", "phase", "usual"), PLACES, ids=[place for place, _, _ in PLACES])
def test_a_delay_is_charged_to_its_rank_and_phase(
    where: str, phase: str, usual: float, level: str, meet: str | None
) -> None:
    plain = Program(bucket_ms=[3.0, 2.0, 1.0], meet=meet)
    program = replace(plain, work={where: late(plain, 2, 30, usual)})
    run = records(program)
    if level == "step":
        run = replace(run, ready=run.ready.clear())
    one = window_of(run)
    found = blame(one)
    assert_closes(one, found)
    assert one.level == level
    assert charged_ms(found) == {phase: [0, 0, 30 * 12 * 3, 0]}
    assert found.caused_s[2] == pytest.approx([0.36, 0.36, 0, 0.36])
    assert found.late_s == pytest.approx(np.tile([0, 0, 0.03, 0], (12, 1)), abs=1e-9)
    assert found.last.tolist() == [0, 0, 12, 0]


def test_a_slow_optimizer_makes_its_rank_late_in_the_next_step() -> None:
    program = Program(work={"optimizer": late(Program(), 1, 30, 5)})
    assert charged_ms(of(program)) == {"optimizer": [0, 30 * 11 * 3, 0, 0]}


def test_a_delay_that_goes_around_is_charged_around() -> None:
    steps = np.arange(12)[:, None]
    program = Program(work={"forward": 20 + 30 * (np.arange(4) == steps % 4)})
    found = of(program)
    assert charged_ms(found) == {"forward": [30 * 3 * 3] * 4}
    assert found.last.tolist() == [3] * 4
    assert found.late_s.max(axis=1) == pytest.approx(np.full(12, 0.03))


def test_of_two_at_once_the_last_is_charged_and_two_phases_share() -> None:
    program = Program(work={"input": [1, 21, 1, 1], "forward": [20, 20, 20, 60]})
    found = of(program)
    assert charged_ms(found) == {"forward": [0, 0, 0, 12 * (40 + 20 + 40)]}
    both = of(Program(work={"input": [1, 1, 1, 11], "forward": [20, 20, 20, 50]}))
    assert charged_ms(both) == {"input": [0, 0, 0, 12 * 3 * 10], "forward": [0, 0, 0, 12 * 3 * 30]}


def test_a_network_that_is_slow_for_all_makes_nobody_wait() -> None:
    found = of(Program(bucket_ms=[40.0, 40.0, 40.0]))
    assert charged_ms(found) == {}
    assert found.delay_s.sum() == 0
    assert found.transfer_s.sum() == pytest.approx(12 * 4 * (0.120 + 0.040 / 3 - 0.040), abs=1e-6)
    assert found.last.tolist() == [0] * 4


def test_a_busy_lane_hides_lateness_that_step_level_sees() -> None:
    """Rank 3 is 12 ms late with its last bucket, while the lane is busy with earlier ones: that costs nothing."""
    plain = Program(steps=16, bucket_ms=[30.0, 20.0, 2.0])
    run = records(replace(plain, work={"backward": late(plain, 3, 12, 40)}))
    at_buckets, at_steps = blame(window_of(run)), blame(window_of(replace(run, ready=run.ready.clear())))
    assert at_buckets.delay_s.sum() == pytest.approx(16 * 3 * 0.004, rel=0.01)  # a third of it, at the first bucket
    assert at_steps.delay_s.sum() == pytest.approx(16 * 3 * 0.012, rel=0.01)
    for found in (at_buckets, at_steps):  # the wait that `show` gives does not depend on buckets
        assert found.wait_s.sum() == pytest.approx(16 * 3 * 0.012, rel=0.01)
    shown = reductions(every_reduction(run.steps, run.reductions), 4)["wait_ns"]
    assert at_buckets.wait_s.sum() == pytest.approx(float(shown.sum()) / 1e9, rel=1e-6)


def test_a_rank_that_has_its_gradients_back_late_is_late_for_transfer() -> None:
    program = Program(tail_ms=[0, 20, 0, 0])
    assert charged_ms(of(program)) == {TRANSFER: [0, 20 * 11 * 3, 0, 0]}


def test_lateness_from_before_the_window_is_not_attributed() -> None:
    found = of(Program(begin_ms=[0, 0, 0, 25]))
    assert charged_ms(found) == {"unattributed": [0, 0, 0, 75]}


def test_where_everybody_is_late_at_times_the_sums_hold() -> None:
    rng = np.random.default_rng(5)
    work = {name: rng.exponential(10, (30, 4)) for name in ("input", "forward", "backward", "pause")}
    one = window_of(records(Program(steps=30, work=work, meet="barrier", tail_ms=rng.exponential(1, (30, 4)))))
    found = blame(one)
    assert_closes(one, found)
    assert found.unattributed_s.sum() < 0.1 * found.delay_s.sum()


# Meetings of some ranks


def pairs(*, late_s: float, steps: int = 3) -> Window:
    """Ranks 0 and 1 meet before forward, and all three reduce after it; rank 0 comes ``late_s`` late."""
    made = window(
        ranks=3,
        steps=steps,
        calls=[Call(use="all_reduce", transfer_s=0.001)],
        input=np.array([late_s, 0, 0]),
        forward=np.array([0.010, 0.011, 0.010]),
        bucket_s=0.002,
    )
    member = np.array([True, True, False])
    calls = (made.kind == CALL)[:, None]
    some = replace(
        made,
        meets=made.meets & member,
        waits=made.waits & member,
        transfer_s=np.where(calls & ~member, 0, made.transfer_s),
    )
    ends_s = replay(some).end_s
    return replace(some, wall_s=np.diff(ends_s, axis=0, prepend=some.begin_s[None]))


def test_waiting_is_passed_on_to_whom_it_was_for() -> None:
    """Rank 1 waits 40 ms for rank 0, and rank 2 then for rank 1, which is last by 1 ms: rank 0 caused nearly all."""
    one = pairs(late_s=0.040)
    found = blame(one)
    assert_closes(one, found)
    assert found.last.tolist() == [3, 3, 0]  # rank 0 in the pair's meeting, rank 1 in the reduction
    assert found.by_phase["input"][0] == pytest.approx(found.delay_s.sum(), rel=0.06)
    assert found.by_phase["forward"][1] == pytest.approx(found.caused_s[1].sum() * 2 / 3, rel=0.01)
    assert found.caused_s[1, 0] == pytest.approx(3 * 0.001)  # for rank 0 itself it was that much too late
    assert found.caused_s[0, 2] > 20 * found.caused_s[1, 2]


def test_ranks_that_never_all_meet_are_compared_with_those_they_meet() -> None:
    one = pairs(late_s=0.040, steps=6)
    kept = one.kind != REDUCE
    apart = replace(
        one,
        kind=one.kind[kept],
        step_of=one.step_of[kept],
        use=one.use[kept],
        work={name: seconds[kept] for name, seconds in one.work.items()},
        meets=one.meets[kept],
        waits=one.waits[kept],
        early_s=one.early_s[kept],
        transfer_s=one.transfer_s[kept],
        reductions=None,
    )
    ends_s = replay(apart).end_s
    apart = replace(apart, wall_s=np.diff(ends_s, axis=0, prepend=apart.begin_s[None]))
    found = blame(apart)
    assert_closes(apart, found)
    assert found.by_phase["input"] == pytest.approx([found.delay_s.sum(), 0, 0], rel=0.05)
    assert found.late_s[:, 2].tolist() == [0] * 6
    assert found.late_s[:, 0] == pytest.approx([0.04] * 6, abs=1e-9)


def test_who_is_last_by_less_than_clocks_may_be_wrong_is_not_counted() -> None:
    program = Program(work={"input": late(Program(), 2, 5, 1)})
    one = window_of(records(program))
    assert blame(one).last.tolist() == [0, 0, 12, 0]
    assert blame(replace(one, bound_s=0.0024)).last.tolist() == [0, 0, 12, 0]
    assert blame(replace(one, bound_s=0.0026)).last.tolist() == [0] * 4
    tiny = Program(work={"input": late(Program(), 2, 0.05, 1)})
    assert of(tiny).last.tolist() == [0] * 4


def test_many_events_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = records(Program(work={"input": np.random.default_rng(2).uniform(0, 9, (12, 4))}))
    whole = blame(window_of(run))
    monkeypatch.setattr("allpull.replay.blame.CHUNK", 8)
    parts = blame(window_of(run))
    assert parts.caused_s == pytest.approx(whole.caused_s)
    assert parts.by_phase["input"] == pytest.approx(whole.by_phase["input"])
    assert pl.DataFrame(parts.by_phase).equals(pl.DataFrame(whole.by_phase))


def test_a_call_begun_long_before_is_no_meeting_that_ranks_leave_together() -> None:
    """Rank 1 works 10 ms longer after its backward; then both wait for a call begun before, which was over long ago."""
    over = Call(use="all_reduce", at="end", early_s=0.02)
    one = window(2, 4, calls=[over], forward=0.01, optimizer=np.array([0.02, 0.03]))
    found = blame(one)
    assert_closes(one, found)
    assert found.caused_s[1, 0] == pytest.approx(3 * 0.01, rel=0.01)
    assert found.by_phase["optimizer"][1] == pytest.approx(found.caused_s[1, 0], rel=0.01)
