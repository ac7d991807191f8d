"""Which steps a window is made of: those that all ranks made one after another, and why there may be none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyse.program import MS, Program, header, late, log, records

from allpull.analyse.aligned import AlignedRun
from allpull.replay.engine import replay
from allpull.replay.recording import step_choice
from allpull.replay.recording.build import NoWindow, record_window
from allpull.replay.window import Window
from allpull.rundir.read.counters import PINGS_SCHEMA
from allpull.rundir.read.run import RunData
from allpull.schema.events import Buckets
from allpull.schema.gap import texts


def window_of(run: RunData) -> Window:
    found = record_window(AlignedRun(run))
    assert isinstance(found, Window), found
    return found


def steps_of(run: RunData) -> list[int]:
    """The first step and the last."""
    return [int(step) for step in window_of(run).steps[[0, -1]]]


def refused(run: RunData) -> str:
    found = record_window(AlignedRun(run))
    assert isinstance(found, NoWindow)
    return found.reason


def tagged(run: RunData, name: str, steps: list[int], rank: int | None = None) -> RunData:
    here = pl.col("step").is_in(steps) & (pl.lit(rank is None) | (pl.col("rank") == (rank or 0)))
    column = pl.when(here).then(statement=True).otherwise(f"tag_{name}").alias(f"tag_{name}")
    return replace(run, steps=run.steps.with_columns(column))


def without(run: RunData, steps: list[int], rank: int | None = None) -> RunData:
    here = pl.col("step").is_in(steps) & (pl.lit(rank is None) | (pl.col("rank") == (rank or 0)))
    return replace(run, steps=run.steps.filter(~here))


def later(run: RunData, by_ns: int, *, from_step: int = 0, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> RunData:
    """Clocks that are ``by_ns`` ahead from a step on."""
    here = (pl.col("step") >= from_step) & pl.col("rank").is_in(ranks)

    def moved(frame: pl.DataFrame, *moments: str) -> pl.DataFrame:
        return frame.with_columns(
            pl.when(here).then(pl.col(moment) + by_ns).otherwise(moment).alias(moment) for moment in moments
        )

    return replace(
        run,
        steps=moved(run.steps, "begin_ns", "end_ns", "arrival_ns", "done_ns"),
        collectives=moved(run.collectives, "begin_ns", "end_ns"),
        ready=run.ready.with_columns(
            pl.when(here).then(pl.col("ready_ns").list.eval(pl.element() + by_ns)).otherwise("ready_ns")
        ),
    )


def test_warm_up_is_left_out_and_also_where_a_single_rank_says_so() -> None:
    assert steps_of(records(Program(warmup=3))) == [3, 11]
    assert steps_of(tagged(records(Program(warmup=3)), "warmup", [3, 4], rank=2)) == [5, 11]


def test_the_longest_series_of_all_ranks_counts_and_the_later_of_two() -> None:
    run = records(Program(steps=20))
    assert steps_of(without(run, [12], rank=1)) == [0, 11]
    assert steps_of(without(run, [5], rank=1)) == [6, 19]
    assert steps_of(without(without(run, [6], rank=1), [13])) == [14, 19]  # 0 to 5, 7 to 12, 14 to 19
    assert steps_of(without(without(run, [6], rank=1), [12])) == [13, 19]


def test_ranks_that_start_and_end_at_different_steps_have_the_middle_in_common() -> None:
    run = without(without(records(Program(steps=20)), [0, 1, 2], rank=1), [17, 18, 19], rank=3)
    assert steps_of(run) == [3, 16]
    assert replay(window_of(run)).total_s == pytest.approx(window_of(run).measured_s, abs=1e-9)


def test_time_that_passes_between_steps_ends_a_series() -> None:
    run = records(Program(steps=20))
    usual_ns = 67 * MS
    assert steps_of(later(run, usual_ns // 100, from_step=8)) == [0, 19]  # that much is the error of clocks
    assert steps_of(later(run, usual_ns, from_step=8)) == [8, 19]


@pytest.mark.parametrize("by_ms", [-67, 67, 10**6, -(10**6)])
def test_a_clock_that_jumps_leaves_the_steps_before_it(by_ms: int) -> None:
    window = window_of(later(records(Program(steps=20)), by_ms * MS, from_step=8, ranks=(2,)))
    assert window.steps[[0, -1]].tolist() == [0, 7]
    (gap,) = window.gaps
    assert gap.text.startswith("in 12 of 20 steps a rank had reduced gradients before another had its own, by up to ")
    assert window.measured_s == pytest.approx(8 * 0.067, rel=0.1)


def test_steps_that_one_rank_counts_from_elsewhere_are_refused() -> None:
    run = records(Program(steps=20))

    def moved(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.when(pl.col("rank") == 1).then(pl.col("step") + 3).otherwise("step").alias("step"))

    shifted = replace(run, steps=moved(run.steps), ready=moved(run.ready), collectives=moved(run.collectives))
    assert refused(shifted) == (
        "in 17 of 17 steps a rank had reduced gradients before another had its own, by up to 200 ms: "
        "moments of these ranks do not compare"
    )


def test_ranks_whose_steps_lie_apart_are_not_one_training() -> None:
    """Nothing but calls, each of which returned at once: no reduction contradicts a clock that is 1,000 s ahead."""
    run = records(Program(ranks=2, reduces=False, meet="all_reduce", meet_ms=0.0, begin_ms=[0, 0]))
    assert window_of(run).ranks == 2
    assert refused(later(run, 1000 * 1000 * MS, ranks=(1,))) == (
        "a rank began these steps 16 min 39 s after another had ended them: their clocks do not compare"
    )


def scored(steps: list[int], count: int = 40, **more: Any) -> RunData:
    """A run with an evaluation in each of ``steps``."""
    seconds = np.where(np.isin(np.arange(count), steps), 30, 0)[:, None]
    return records(Program(steps=count, work={"evaluation": seconds, **more}))


def test_a_window_has_what_comes_now_and_then_as_often_as_it_comes() -> None:
    assert steps_of(scored([7, 15, 23, 31, 39])) == [0, 39]
    assert steps_of(scored([7, 15, 23, 31], 38)) == [6, 37]  # 32 steps, four evaluations
    assert steps_of(scored([7, 15, 23, 31, 36], 37)) == [5, 36]  # the last comes when the training ends
    assert steps_of(scored([7], 38)) == [0, 37]  # nothing says how often
    assert steps_of(scored([3, 9, 30], 38)) == [0, 37]
    saved = np.where(np.isin(np.arange(40), [4, 14, 24, 34]), 30, 0)[:, None]
    assert steps_of(scored([1, 5, 9, 13, 17, 21, 25, 29, 33, 37], 40, checkpoint=saved)) == [0, 39]  # 20 divides 40
    assert steps_of(scored([7, 15, 23, 31, 39], 40, checkpoint=saved)) == [0, 39]  # and so does the common 40
    assert steps_of(scored([0, 7, 14, 21, 28, 35], 40, checkpoint=saved)) == [5, 39]  # 70 does not fit: evaluations


def test_only_ordinary_steps_outside_a_window_are_compared_with_those_in_it() -> None:
    """14 of 54 steps make up no whole period of evaluations: that these come now and then explains the difference."""
    evaluated = np.where(np.isin(np.arange(54), [19, 39]), 600, 0)[:, None]
    alike = window_of(records(Program(steps=54, work={"evaluation": evaluated})))
    assert [alike.steps.size, texts(alike.gaps)] == [40, []]
    slower = np.where(np.arange(54) < 14, 30, 0)[:, None]
    (gap,) = window_of(records(Program(steps=54, work={"evaluation": evaluated, "input": slower}))).gaps
    assert gap.text.startswith("14 more steps, from 0 to 13, took 96 ms each instead of 66 ms, and are not explained")


@pytest.mark.parametrize(("made", "is_said"), [(24, True), (35, False)])
def test_steps_that_some_ranks_make_alone_are_said_to_be_in_no_gain(made: int, is_said: bool) -> None:
    """As with `join()`, or shards of unequal length: the ranks but one end after ``made`` of 40 steps."""
    run = records(Program(steps=40))
    shorter = (pl.col("rank") == 0) | (pl.col("step") < made)
    window = window_of(replace(run, steps=run.steps.filter(shorter), ready=run.ready.filter(shorter)))
    assert window.steps[-1] < made
    expected = (
        f"{40 - made} more steps, from {made} to 39, took 67 ms each, and are not explained: not all ranks recorded"
    )
    assert any(text.startswith(expected) for text in texts(window.gaps)) is is_said


def test_a_resumed_training_begins_another_series() -> None:
    run = tagged(records(Program(steps=20)), "resumed", [7])
    assert steps_of(run) == [7, 19]


def test_profiled_steps_stay_unless_the_profiler_made_them_slow() -> None:
    quick = tagged(records(Program(steps=20)), "traced", [6, 7])
    assert steps_of(quick) == [0, 19]
    slow = Program(steps=20, work={"forward": np.where(np.isin(np.arange(20), [6, 7]), 60, 20)[:, None]})
    window = window_of(tagged(records(slow), "traced", [6, 7]))
    assert window.steps.tolist() == list(range(8, 20))
    assert texts(window.gaps) == ["profiled steps took 107 ms, others 67 ms: the window lies between them"]


def epochs(length: int, steps: int, *, evaluation_ms: int = 30, **changes: Any) -> RunData:
    """Each epoch's first step is tagged, and has the evaluation of the epoch before in it."""
    first = np.arange(steps) % length == 0
    evaluation = np.where(first & (np.arange(steps) > 0), evaluation_ms, 0)[:, None]
    run = records(Program(steps=steps, work={"evaluation": evaluation}, **changes))
    run = replace(run, steps=run.steps.with_columns((pl.col("step") // length).alias("epoch")))
    return tagged(run, "first_batch", np.flatnonzero(first).tolist())


@pytest.mark.parametrize(
    ("length", "steps", "warmup", "expected"),
    [
        (10, 20, 3, [10, 19]),
        (10, 50, 5, [10, 49]),
        (10, 27, 3, [7, 26]),  # two times ten, wherever they begin
        (30, 40, 5, [10, 39]),
        (50, 40, 5, [5, 39]),  # not one whole epoch
        (1, 12, 5, [5, 11]),
    ],
)
def test_whole_epochs_so_that_evaluations_weigh_as_they_occur(
    length: int, steps: int, warmup: int, expected: list[int]
) -> None:
    window = window_of(epochs(length, steps, warmup=warmup))
    assert window.steps[[0, -1]].tolist() == expected
    if length < steps:
        assert window.odd.sum() == window.steps.size / length
        assert (window.per_step("evaluation")[:, 0] > 0).tolist() == window.odd.tolist()


@pytest.mark.parametrize(("evaluation_ms", "first"), [(30, 5), (1000, 60)])
def test_half_of_a_run_is_left_out_only_where_whole_epochs_matter(evaluation_ms: int, first: int) -> None:
    """Two epochs less the warm-up: one evaluation in 115 steps, not one in 60, is 0.4 % of the time, or 11 %."""
    window = window_of(epochs(60, 120, evaluation_ms=evaluation_ms, warmup=5))
    assert window.steps[[0, -1]].tolist() == [first, 119]


def test_a_step_is_odd_for_all_where_it_is_odd_for_one() -> None:
    run = tagged(tagged(records(Program()), "checkpoint", [4], rank=3), "evaluation", [9], rank=0)
    assert np.flatnonzero(window_of(run).odd).tolist() == [4, 9]
    assert not window_of(tagged(records(Program()), "skipped", [4])).odd.any()


def test_steps_that_begin_with_a_rollout_are_odd_where_only_some_do() -> None:
    run = records(Program(ranks=2, steps=12))
    schema = run.named.schema

    def with_rollouts(every: int) -> Window:
        rows = [(0, step, "rollout", 5 * MS) for step in range(0, 12, every)]
        return window_of(replace(run, named=pl.DataFrame(rows, schema=schema, orient="row")))

    some = with_rollouts(4)
    assert [int(step) for step in some.steps[some.odd]] == [step for step in some.steps if step % 4 == 0]
    assert some.steps.size % 4 == 0  # whole periods
    assert not with_rollouts(1).odd.any()


def test_steps_with_an_evaluation_are_odd_where_most_have_none() -> None:
    run = records(Program(ranks=2, steps=12))
    assert window_of(tagged(run, "evaluation", list(range(0, 12, 4)))).odd.any()
    assert not window_of(tagged(run, "evaluation", list(range(12)))).odd.any()


def test_a_window_has_the_same_buckets_throughout() -> None:
    program = Program()
    sizes = [[5, 5, 5], [7, 7], [7, 7]]
    cut = [
        Buckets(kind="buckets", step=step, sizes_bytes=of, t_ns=0) for step, of in zip((0, 4, 8), sizes, strict=True)
    ]
    run = records(program)
    run = replace(run, events={**run.events, 1: log(1, program, buckets=tuple(cut))})
    assert steps_of(run) == [4, 11]


def test_a_window_holds_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = records(Program(ranks=4, steps=30))
    monkeypatch.setattr(step_choice, "MAX_CELLS", 4 * 5 * 10)  # 4 ranks; reduction, step and 3 buckets
    window = window_of(run)
    assert window.steps.tolist() == list(range(20, 30))
    assert texts(window.gaps) == ["only the last 10 of 30 steps are explained: more do not fit in memory"]
    monkeypatch.setattr(step_choice, "MAX_EVENTS", 1)
    assert window_of(run).steps.tolist() == [29]


def test_one_rank_has_a_window_in_which_it_waits_for_nobody() -> None:
    window = window_of(records(Program(ranks=1, reduces=False)))
    assert window.reductions is None
    assert not window.meets.any()
    assert replay(window).total_s == pytest.approx(12 * 0.066)


def test_every_reason_for_no_window_says_what_is_missing() -> None:
    run = records(Program())
    lost = {rank: run.headers[rank] for rank in (0, 1, 3)}
    assert (
        refused(replace(run, headers=lost, steps=run.steps.filter(pl.col("rank") != 2)))
        == "rank 2 left no step records"
    )
    many = run.record.model_copy(update={"ranks": 100_000})
    assert refused(replace(run, record=many)) == "ranks 4, 5, 6 and 99,993 more left no step records"
    assert refused(replace(run, steps=run.steps.clear())) == "no step was recorded"
    silent = replace(run, steps=run.steps.filter(pl.col("rank") != 1))
    assert refused(silent) == "no step was recorded by all 4 ranks"
    apart = without(without(run, list(range(6)), rank=1), list(range(5, 12)), rank=2)
    assert refused(apart) == "no step was recorded by all 4 ranks: rank 2 has steps 0 to 4, rank 1 has steps 6 to 11"
    warm = records(Program(warmup=12))
    assert refused(warm) == "only warm-up was recorded: all ranks have 12 steps in common, and more are needed"
    hosts = {rank: header(rank, 4, host=f"h{rank}", boot_id=f"b{rank}") for rank in range(4)}
    assert refused(replace(run, headers=hosts)).startswith("the clocks of the hosts are not aligned")
    assert refused(records(Program(reduces=False))).startswith("no collective of these steps could be matched")


def test_a_shift_of_all_clocks_and_hosts_that_are_aligned_change_nothing() -> None:
    program = Program(meet="barrier", work={"pause": late(Program(), 2, 9)})
    plain, shifted = window_of(records(program)), window_of(records(replace(program, base_ns=3 * 10**17 + 1)))
    ahead_ns = 7_200_000_000_123
    hosts = {rank: header(rank, 4, host="ab"[rank // 2], boot_id="ab"[rank // 2]) for rank in range(4)}
    moved = replace(later(records(program), ahead_ns, ranks=(2, 3)), headers=hosts, pings=pings(ahead_ns))
    aligned = window_of(moved)
    assert aligned.bound_s > 0
    for one in (shifted, aligned):
        assert one.wall_s == pytest.approx(plain.wall_s, abs=1e-9)
        for name, seconds in plain.work.items():
            assert one.work[name] == pytest.approx(seconds, abs=1e-9), name
        assert one.transfer_s == pytest.approx(plain.transfer_s, abs=1e-9)
        assert one.reductions is not None
        assert plain.reductions is not None
        assert one.reductions.seconds == pytest.approx(plain.reductions.seconds, abs=1e-9)


def pings(ahead_ns: int) -> pl.DataFrame:
    """Of host b, whose clock is ahead of that of a, before and after the run."""
    rows = []
    for at in (10**12 - 10**9, 10**12 + 10**10):
        stamps = (at + ahead_ns, at + 20_000, at + 20_000, at + ahead_ns + 40_000)
        rows.append(("b", "a", *stamps, *stamps))
    return pl.DataFrame(rows, schema=PINGS_SCHEMA, orient="row")


@settings(max_examples=30)
@given(order=st.permutations(range(4)))
def test_other_numbers_of_ranks_give_the_same_window(order: list[int]) -> None:
    program = Program(steps=4, meet="all_reduce", work={"input": [1, 4, 9, 16], "backward": [40, 41, 45, 60]})
    renamed = replace(
        program, work={"input": np.take([1, 4, 9, 16], order), "backward": np.take([40, 41, 45, 60], order)}
    )
    one, other = window_of(records(program)), window_of(records(renamed))
    for name, seconds in one.work.items():
        assert other.work[name] == pytest.approx(seconds[:, order], abs=1e-9)
    assert other.reductions is not None
    assert one.reductions is not None
    assert other.reductions.seconds == pytest.approx(one.reductions.seconds, abs=1e-9)


@pytest.mark.parametrize(("longer_ms", "is_told"), [(50, True), (0, False)])
def test_many_steps_outside_the_window_are_told_where_they_took_another_time(
    monkeypatch: pytest.MonkeyPatch, longer_ms: int, is_told: bool
) -> None:
    monkeypatch.setattr(step_choice, "FEWEST", 3)
    run = records(Program(ranks=4))
    steps = run.steps["step"].unique().sort().to_list()
    parted = steps[len(steps) // 3]
    here = pl.col("step") < parted
    begins = run.steps.with_columns(pl.col("begin_ns") - pl.when(here).then(longer_ms * MS).otherwise(0))
    said = texts(window_of(later(replace(run, steps=begins), 500 * MS, from_step=parted)).gaps)
    assert any(f", from {steps[0]} to {parted - 1}, took " in text for text in said) == is_told
