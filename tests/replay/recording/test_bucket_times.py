"""Seconds of buckets are what the lane of a simulated program took, as far as ends of steps can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyse.program import MS, Program, late, log, records

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.traced_buckets import SCHEMA, BucketWindows
from allpull.replay.engine import event_times, replay
from allpull.replay.recording.bucket_times import sizes, solve_reductions
from allpull.replay.recording.build import record_window
from allpull.replay.window import REDUCE, Reductions, Window
from allpull.rundir.read.run import RunData
from allpull.schema.events import Buckets


def window_of(run: RunData, windows: BucketWindows | None = None) -> Window:
    aligned = AlignedRun(run)
    if windows is not None:
        vars(aligned)["buckets"] = windows  # as if they had been read
    found = record_window(aligned)
    assert isinstance(found, Window), found
    return found


def reductions_of(run: RunData, windows: BucketWindows | None = None) -> Reductions:
    found = window_of(run, windows).reductions
    assert found is not None
    return found


def jittered(program: Program, seed: int = 0) -> np.ndarray:
    """Backward of 40 ms give or take 4: what tells lanes apart."""
    return np.random.default_rng(seed).normal(40, 4, (program.steps, program.ranks))


def test_a_busy_lane_gives_back_the_seconds_of_every_bucket() -> None:
    """36 ms of reductions begin 13 ms into a backward of 40: the first bucket decides when the step goes on."""
    program = Program(bucket_ms=[16.0, 12.0, 8.0])
    found = reductions_of(records(program))
    assert found.seconds == pytest.approx(np.tile([0.016, 0.012, 0.008], (12, 1)), abs=1e-8)
    assert found.size_bytes is not None
    assert found.size_bytes.tolist() == [16 * MS, 12 * MS, 8 * MS]


def test_an_idle_lane_tells_of_its_last_bucket_alone() -> None:
    program = Program(bucket_ms=[3.0, 2.0, 1.0])
    found = reductions_of(records(program))
    assert found.seconds[:, -1] == pytest.approx(np.full(12, 0.001), abs=1e-8)
    assert (found.seconds[:, :-1] <= 0.0041).all()


def test_what_busy_steps_show_limits_what_idle_steps_hide() -> None:
    """A lane of 16, 12 and 1 ms. Every second step backward is long, and 6 ms come from elsewhere: no slower lane."""
    program = Program(bucket_ms=[16.0, 12.0, 1.0], parts=[0.2, 0.3, 0.5])
    slow = replace(program, work={"backward": np.where(np.arange(12) % 2, 40.0, 80.0)[:, None]})
    run = records(replace(slow, bucket_ms=[[16.0, 12.0, 7.0 if step % 2 == 0 else 1.0] for step in range(12)]))
    logs = {rank: log(rank, program, buckets=(cut([16, 12, 1]),)) for rank in range(4)}
    found = reductions_of(replace(run, events=logs))
    busy = np.arange(12) % 2 == 1
    assert found.seconds[busy] == pytest.approx(np.tile([0.016, 0.012, 0.001], (6, 1)), abs=1e-8)
    assert found.seconds[~busy] == pytest.approx(np.tile([0.016, 0.012, 0.007], (6, 1)), abs=1e-8)


def cut(sizes_mb: list[int], step: int = 0) -> Buckets:
    return Buckets(kind="buckets", step=step, sizes_bytes=[1_000_000 * size for size in sizes_mb], t_ns=0)


def test_latency_is_told_from_bytes_by_what_ends_follow() -> None:
    """Each bucket takes 9 ms whatever its size, and backward varies: by bytes, the first would be nearly nothing."""
    plain = Program(steps=40, bucket_ms=[9.0, 9.0, 9.0, 9.0], parts=[0.4, 0.2, 0.2, 0.2])
    backward = jittered(plain) + np.where(np.arange(40) % 2, 0, 40)[:, None]
    program = replace(plain, work={"backward": backward})
    logs = {rank: log(rank, program, buckets=(cut([1, 40, 40, 2]),)) for rank in range(4)}
    found = reductions_of(replace(records(program), events=logs))
    assert np.median(found.seconds, axis=0) == pytest.approx(np.full(4, 0.009), rel=0.1)


def test_bytes_stay_where_they_explain_the_ends() -> None:
    plain = Program(steps=40, bucket_ms=[2.0, 14.0, 14.0, 4.0], parts=[0.1, 0.3, 0.3, 0.3])
    backward = jittered(plain) + np.where(np.arange(40) % 2, 0, 40)[:, None]
    found = reductions_of(records(replace(plain, work={"backward": backward})))
    assert np.median(found.seconds[1::2], axis=0) == pytest.approx([0.002, 0.014, 0.014, 0.004], rel=0.02)


def test_a_profiler_knows_better_than_bytes() -> None:
    program = Program(bucket_ms=[16.0, 12.0, 8.0], sizes=[1, 1, 1000])
    rows: list[tuple[int, ...]] = []
    for rank in (0, 1):
        for bucket, ms in enumerate([16, 12, 8]):
            waited = 5 * MS if rank == 0 else 0  # rank 0 was there before: its measure holds its waiting
            rows.append((rank, 3, bucket, 9, 0, 100, 100 + waited + ms * MS))
    windows = BucketWindows(times=pl.DataFrame(rows, schema=SCHEMA, orient="row"), read=2, gaps=())
    found = reductions_of(records(program), windows)
    assert found.seconds == pytest.approx(np.tile([0.016, 0.012, 0.008], (12, 1)), abs=1e-8)
    torn = replace(windows, times=windows.times.with_columns(pl.lit(None).cast(pl.Int64).alias("end_ns")))
    assert reductions_of(records(program), torn).seconds[0, 0] < 0.001


def test_a_profiler_tells_a_slow_backward_from_a_slow_lane_where_nothing_varies() -> None:
    """Backward takes 80 ms in every step, and 6 ms of its last bucket come from elsewhere; so would a lane of 70 ms."""
    program = Program(bucket_ms=[16.0, 12.0, 7.0], parts=[0.2, 0.3, 0.5], sizes=[16, 12, 1], work={"backward": 80})
    rows = [(0, 3, bucket, 9, 0, 0, ms * MS) for bucket, ms in enumerate([16, 12, 1])]
    windows = BucketWindows(times=pl.DataFrame(rows, schema=SCHEMA, orient="row"), read=1, gaps=())
    found = reductions_of(records(program), windows)
    assert found.seconds == pytest.approx(np.tile([0.016, 0.012, 0.007], (12, 1)), abs=1e-8)
    assert reductions_of(records(program)).seconds[0, 0] == pytest.approx(
        0.071 * 16 / 29, abs=1e-8
    )  # the most it can be


@settings(max_examples=100)
@given(data=st.data())
def test_the_last_bucket_always_ends_when_the_first_rank_was_done(data: Any) -> None:
    count, buckets, ranks = (data.draw(st.integers(1, most)) for most in (12, 5, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    lead_s = np.sort(rng.uniform(0, 0.05, (count, buckets, ranks)), axis=1)[:, ::-1]
    lead_s[:, -1] = 0
    stand_s = np.arange(count)[:, None] + rng.uniform(0, 0.05, (count, ranks))
    leave_s = stand_s + rng.uniform(0, 0.1, (count, ranks)) * (rng.random() < 0.8)
    sizes_bytes = rng.integers(0, 10**8, buckets) if data.draw(st.booleans()) else None
    found = solve_reductions(stand_s, leave_s, lead_s, sizes_bytes)
    ready_s = (stand_s[:, None] - lead_s).max(axis=2)
    lane_s = np.full(count, -np.inf)
    for bucket in range(buckets):
        lane_s = np.maximum(lane_s, ready_s[:, bucket]) + found.seconds[:, bucket]
    assert (found.seconds >= 0).all()
    assert (found.tail_s >= 0).all()
    assert lane_s == pytest.approx(np.maximum(leave_s.min(axis=1), ready_s[:, -1]), abs=1e-12)
    possible = leave_s.min(axis=1) >= ready_s[:, -1]
    assert (lane_s[:, None] + found.tail_s)[possible] == pytest.approx(leave_s[possible], abs=1e-12)


def test_without_moments_of_buckets_there_is_one_bucket_at_step_level() -> None:
    run = records(Program(bucket_ms=[16.0, 12.0, 8.0]))
    window = window_of(replace(run, ready=run.ready.clear()))
    assert window.level == "step"
    assert window.reductions is not None
    assert window.reductions.buckets == 1
    assert (window.reductions.lead_s == 0).all()
    assert replay(window).total_s == pytest.approx(window.measured_s, abs=1e-9)
    single = records(Program(bucket_ms=[16.0]))
    assert window_of(replace(single, ready=single.ready.clear())).level == "bucket"  # all is known of one bucket
    lasts = run.ready.with_columns(pl.col("ready_ns").list.tail(1))
    assert window_of(replace(run, ready=lasts)).level == "step"


def test_moments_that_are_missing_are_medians_of_their_rank_and_too_many_are_too_many() -> None:
    program = Program(bucket_ms=[16.0, 12.0, 8.0], work={"backward": [40, 41, 42, 43]})
    run = records(program)
    one = (pl.col("rank") == 2) & (pl.col("step") == 5)
    torn = run.ready.with_columns(pl.when(one).then(pl.col("ready_ns").list.head(1)).otherwise("ready_ns"))
    window = window_of(replace(run, ready=torn))
    assert [gap.text for gap in window.gaps] == [
        "when buckets were ready is not known in 1 of 48 rank-steps: medians of their ranks are used instead",
    ]
    assert window.reductions is not None
    assert window.reductions.lead_s[5, :, 2] == pytest.approx(window.reductions.lead_s[4, :, 2], abs=1e-8)
    assert window_of(replace(run, ready=run.ready.filter(pl.col("step") > 3))).level == "step"
    assert window_of(replace(run, ready=run.ready.filter(pl.col("rank") != 3))).level == "step"


def test_gradients_that_are_ready_before_their_step_are_not_believed() -> None:
    run = records(Program())
    here = (pl.col("step") == 4) & (pl.col("rank") == 1)
    early = pl.concat_list(pl.lit(-(2**62)), pl.col("ready_ns").list.slice(1))
    strange = run.ready.with_columns(pl.when(here).then(early).otherwise("ready_ns").alias("ready_ns"))
    window = window_of(replace(run, ready=strange))
    assert "in 1 of 48 rank-steps" in window.gaps[0].text
    assert replay(window).total_s == pytest.approx(window.measured_s, abs=1e-9)


def test_sizes_are_those_of_the_step() -> None:
    program = Program()
    logs = {0: log(0, program, buckets=(cut([9, 9]), cut([1, 2, 3], 5), cut([4, 5, 6], 20)))}
    for step, expected in ((4, [1, 2, 3]), (5, [1, 2, 3]), (19, [1, 2, 3]), (20, [4, 5, 6])):
        found = sizes(logs, step, 3)
        assert found is not None
        assert found.tolist() == [1_000_000 * size for size in expected]
    assert sizes(logs, 4, 7) is None
    hostile = Buckets(kind="buckets", step=0, sizes_bytes=[2**70, -1], t_ns=0)
    assert sizes({0: log(0, program, buckets=(hostile,))}, 4, 2) is None


def test_a_slow_backward_is_told_from_a_slow_network() -> None:
    """Rank 2 takes 40 ms more in backward, and the lane would not be busy without it: its last bucket decides."""
    plain = Program(steps=40, bucket_ms=[7.0, 7.0, 7.0])
    slow = replace(plain, work={"backward": jittered(plain) + late(plain, 2, 40)})
    window = window_of(records(slow))
    assert (event_times(window).binding == 2).mean() > 0.9
    narrow = replace(plain, bucket_ms=[40.0, 40.0, 40.0], work={"backward": jittered(plain)})
    assert (event_times(window_of(records(narrow))).binding == 0).mean() > 0.9
    assert window.kind.tolist().count(REDUCE) == 40
