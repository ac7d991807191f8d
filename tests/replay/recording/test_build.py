"""A window holds what was recorded, no more and no less: it closes, and a replay of it repeats it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.analyse.program import MS, Program, late, records
from tests.bucket_moments import each_bucket

from allpull.analyse.aligned import AlignedRun
from allpull.explain.evidence.late.cpu_waiting import is_work
from allpull.replay.engine import replay
from allpull.replay.recording import work
from allpull.replay.recording.build import NoWindow, record_window
from allpull.replay.useful import sequential, useful_s
from allpull.replay.whatif.balanced import like_median
from allpull.replay.window import CALL, REDUCE, STEP, Window
from allpull.rundir.read.run import RunData, read_run
from allpull.schema.events import DeviceStep
from allpull.schema.gap import texts

MakeAny = Callable[..., Any]
KEPT = Path(__file__).resolve().parents[2] / "runs"
EXACT_S = 1e-9
PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def window_of(run: RunData) -> Window:
    found = record_window(AlignedRun(run))
    assert isinstance(found, Window), found
    return found


def refused(run: RunData) -> str:
    found = record_window(AlignedRun(run))
    assert isinstance(found, NoWindow)
    return found.reason


def ms_per_step(window: Window, name: str) -> list[float]:
    return [pytest.approx(float(value), abs=1e-6) for value in 1000 * window.per_step(name).mean(axis=0)]


def recorded_ends_s(window: Window) -> np.ndarray:
    return window.begin_s + np.cumsum(window.wall_s, axis=0)


def worked_s(window: Window) -> np.ndarray:
    return sum((window.per_step(name) for name in window.work), start=np.zeros(window.wall_s.shape))


# What a window holds


def test_of_a_program_that_is_known_every_part_comes_back() -> None:
    program = Program(work={"evaluation": [5, 0, 0, 0], "tail_pause": 0.5}, tail_ms=[1, 1, 2, 1], meet="all_reduce")
    window = window_of(records(program))
    assert window.steps.tolist() == list(range(12))
    assert (window.ranks, window.level, window.uses, window.gaps) == (4, "bucket", ("all_reduce in forward",), ())
    assert ms_per_step(window, "evaluation") == [5, 0, 0, 0]
    assert ms_per_step(window, "input") == [1] * 4
    assert ms_per_step(window, "forward") == [20] * 4
    assert ms_per_step(window, "backward") == [40] * 4
    assert ms_per_step(window, "optimizer") == [5] * 4
    assert ms_per_step(window, "other") == [0.5] * 4
    assert set(window.work) == {"evaluation", "input", "forward", "backward", "optimizer", "other"}
    assert not window.odd.any()  # each step has that evaluation
    assert window.samples.tolist() == [[32.0] * 4] * 12
    assert window.reductions is not None
    assert window.reductions.tail_s == pytest.approx(np.tile([0, 0, 0.001, 0], (12, 1)))
    assert window.reductions.lead_s[3, :, 1] == pytest.approx([2 / 3 * 0.04, 1 / 3 * 0.04, 0], abs=1e-8)
    assert window.kind.tolist() == [CALL, REDUCE, STEP] * 12
    assert window.transfer_s[window.kind == CALL] == pytest.approx(np.full((12, 4), 0.3e-3))


@pytest.mark.parametrize(
    "program",
    [
        Program(),
        Program(bucket_ms=[30.0, 25.0, 20.0], work={"backward": late(Program(), 2, 15, 40)}),
        Program(bucket_ms=[0.0], meet="barrier", work={"pause": late(Program(), 1, 7)}),
        Program(ranks=2, work={"checkpoint": [11, 0]}, barrier_after=(3, 7), meet="all_reduce"),
        Program(ranks=3, begin_ms=[0, 4, 9], reduces=False, meet="all_reduce"),
        Program(ranks=1),
    ],
    ids=["plain", "busy lane", "one bucket", "barriers", "own reduction", "one rank"],
)
def test_a_replay_repeats_what_was_recorded(program: Program) -> None:
    window = window_of(records(program))
    played = replay(window)
    assert played.end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)
    assert played.total_s == pytest.approx(window.measured_s, abs=EXACT_S)


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_kept_runs_replay_within_half_a_percent(version: str) -> None:
    window = window_of(read_run(KEPT / version))
    assert window.ranks == 2
    assert window.steps.size >= 10
    assert replay(window).total_s == pytest.approx(window.measured_s, rel=0.005)
    blocked_s = window.wall_s - worked_s(window)
    assert (blocked_s >= -1e-6).all()
    assert blocked_s.sum() > 0
    assert window.gaps == ()


def test_work_and_what_ranks_were_blocked_are_their_wall_time() -> None:
    program = Program(
        ranks=3,
        steps=20,
        meet="all_reduce",
        tail_ms=[0.1, 0.2, 0.3],
        bucket_ms=[9.0, 8.0, 7.0],
        work={name: np.random.default_rng(1).uniform(0, 9, (20, 3)) for name in ("input", "pause", "late_pause")},
    )
    run = records(program)
    window = window_of(run)
    blocked_ns = run.steps["collective_ns"] + run.steps["done_ns"] - run.steps["arrival_ns"]
    expected_s = blocked_ns.to_numpy().reshape(3, 20).T / 1e9
    assert window.wall_s - worked_s(window) == pytest.approx(expected_s, abs=EXACT_S)


@st.composite
def programs(draw: Any) -> Program:
    ranks, steps, buckets = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    names = draw(st.sets(st.sampled_from(["evaluation", "checkpoint", "pause", "copy", "late_pause", "tail_pause"])))
    return Program(
        ranks=ranks,
        steps=steps,
        work={
            **{name: rng.uniform(0, 20, (steps, ranks)) * (rng.random((steps, ranks)) < 0.5) for name in names},
            "backward": rng.uniform(1, 50, (steps, ranks)),
        },
        bucket_ms=rng.uniform(0, 20, (steps, buckets)),
        tail_ms=rng.uniform(0, 2, (steps, ranks)),
        meet=draw(st.sampled_from([None, "all_reduce", "barrier"])),
        barrier_after=tuple(draw(st.sets(st.integers(0, steps - 1), max_size=2))),
        begin_ms=rng.uniform(0, 5, ranks),
        reduces=draw(st.booleans()),
    )


@PROPERTY
@given(program=programs())
def test_whatever_ranks_do_a_replay_repeats_it_and_every_step_closes(program: Program) -> None:
    run = records(program)
    found = record_window(AlignedRun(run))
    if isinstance(found, NoWindow):
        assert not program.reduces
        assert program.meet is None
        return
    assert replay(found).end_s == pytest.approx(recorded_ends_s(found), abs=EXACT_S)
    work = np.stack([found.per_step(name) for name in found.work])
    assert (work >= 0).all()
    columns = ("collective_ns", "arrival_ns", "done_ns")
    called, arrival, done = (run.steps[name].fill_null(0).to_numpy().reshape(program.ranks, -1).T for name in columns)
    expected_s = (called + (done - arrival)) / 1e9
    assert found.wall_s - work.sum(axis=0) == pytest.approx(expected_s[-found.steps.size :], abs=EXACT_S)
    for name in ("evaluation", "checkpoint", "copy", "forward", "optimizer"):
        assert found.per_step(name) == pytest.approx(program.of(name)[-found.steps.size :] / 1e9, abs=EXACT_S), name


moments_ms = st.integers(-50, 250)


@PROPERTY
@given(data=st.data())
def test_records_that_contradict_themselves_still_close(
    data: Any, make_records: MakeAny, make_data: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny
) -> None:
    """Phases longer than their step, reductions outside of it, calls in one another: cut to what is possible."""

    def table(least: int, most: int) -> list[list[int]]:
        return [[data.draw(st.integers(least, most)) for _ in range(2)] for _ in range(3)]

    arrival = table(-50, 150)
    steps = make_records(
        [[100, 100]] * 3,
        forward=table(0, 120),
        backward=table(0, 120),
        evaluation=table(0, 60),
        arrival=arrival,
        done=[[max(own) + data.draw(st.integers(-5, 60)) for _ in own] for own in arrival],
    )
    calls = []
    for seq in range(data.draw(st.integers(0, 5))):
        step = data.draw(st.integers(0, 2))
        for rank in (0, 1):
            begin, blocked, more = data.draw(moments_ms), data.draw(st.integers(0, 90)), data.draw(st.integers(0, 40))
            calls.append((rank, step, 0, seq, 100 * step + begin, blocked, 100 * step + begin + blocked + more))
    op, inside = data.draw(st.sampled_from([("broadcast", "forward"), ("all_reduce", None), ("barrier", "evaluation")]))
    root = 1 if op == "broadcast" else None
    logs = {rank: make_log(rank, collective_kinds=(make_kind(op, 2, inside=inside, root=root),)) for rank in (0, 1)}
    window = window_of(make_data(steps, 2, events=logs, collectives=make_calls(calls)))
    for values in (*window.work.values(), window.early_s, window.transfer_s, window.reductions.seconds):  # type: ignore[union-attr]
        assert (values >= 0).all()
        assert np.isfinite(values).all()
    assert (worked_s(window) <= window.wall_s + EXACT_S).all()
    assert window.wall_s == pytest.approx(np.full((3, 2), 0.1))
    assert np.isfinite(replay(window).end_s).all()


STRANGE = [0, 1, 10**6, 10**12 + 5 * 10**7, 2**62]
MOMENTS = ("begin_ns", "end_ns", "arrival_ns", "done_ns")
LENGTHS = ("forward_ns", "backward_ns", "evaluation_ns", "collective_ns", "samples")


@PROPERTY
@given(data=st.data())
def test_hostile_numbers_make_a_window_that_closes_or_none(data: Any) -> None:
    """Everything that the reader lets through: moments of any size and order, missing steps, lists of odd lengths."""
    run = records(data.draw(programs()))

    def spoilt(frame: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
        for name in data.draw(st.lists(st.sampled_from(names), max_size=3)):
            values = frame[name].to_list()
            for place in data.draw(st.lists(st.integers(0, max(0, len(values) - 1)), max_size=3)) if values else []:
                values[place] = data.draw(st.sampled_from(STRANGE))
            frame = frame.with_columns(pl.Series(name, values, dtype=pl.Int64))
        return frame

    steps = spoilt(run.steps, (*MOMENTS, *LENGTHS)).with_columns(
        pl.max_horizontal("begin_ns", "end_ns").alias("end_ns")
    )
    ready = run.ready.head(data.draw(st.integers(0, run.ready.height)))
    hostile = replace(
        run,
        steps=steps.head(data.draw(st.integers(steps.height // 2, steps.height))),
        collectives=spoilt(run.collectives, ("begin_ns", "blocked_ns", "end_ns", "seq", "kind")),
        ready=spoilt(each_bucket(ready), ("ready_ns",)).group_by("rank", "step", maintain_order=True).agg("ready_ns"),
    )
    found = record_window(AlignedRun(hostile))
    if isinstance(found, NoWindow):
        assert found.reason
        return
    size_s = 1e-9 * max(1.0, found.measured_s)
    for seconds in found.work.values():
        assert (seconds >= 0).all()
        assert np.isfinite(seconds).all()
    assert (worked_s(found) <= found.wall_s + size_s).all()
    assert np.isfinite(replay(found).end_s).all()


def test_moments_of_buckets_are_read_from_disk_into_leads(tmp_path: Path) -> None:
    """A run directory written by hand: header, steps with ``ready_ns``, and what DDP said of its buckets."""
    run = records(Program(ranks=2, bucket_ms=[16.0, 12.0, 8.0]))
    root = tmp_path / "run"
    (root / "steps").mkdir(parents=True)
    (root / "events").mkdir()
    (root / "run.json").write_text(run.record.model_dump_json(by_alias=True))
    for rank in (0, 1):
        moments = run.ready.filter(pl.col("rank") == rank).select("step", "ready_ns")
        mine = run.steps.filter(pl.col("rank") == rank).join(moments, on="step").sort("step")
        kept = [name for name in mine.columns if name != "rank" and not name.startswith("tag_")]
        header = run.headers[rank].model_copy(update={"budget": 1 << 20}).model_dump_json(by_alias=True)
        (root / "steps" / f"rank-{rank:05d}.jsonl").write_text(f"{header}\n{mine.select(kept).write_ndjson()}")
        log = run.events[rank]
        lines = [log.header.model_copy(update={"budget": 1 << 20}), *log.buckets]
        text = "".join(f"{line.model_dump_json(by_alias=True)}\n" for line in lines)
        (root / "events" / f"rank-{rank:05d}.jsonl").write_text(text)
    read, made = window_of(read_run(root)), window_of(run)
    assert read.level == "bucket"
    assert read.reductions is not None
    assert made.reductions is not None
    assert read.reductions.lead_s.tolist() == made.reductions.lead_s.tolist()
    assert read.reductions.seconds == pytest.approx(np.tile([0.016, 0.012, 0.008], (12, 1)), abs=1e-8)
    assert replay(read).total_s == pytest.approx(read.measured_s, abs=EXACT_S)


@pytest.mark.parametrize("cells", [1, 12, 21])
def test_work_is_the_same_however_many_steps_are_laid_out_together(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(meet="all_reduce", work={"pause": late(Program(), 3, 15)})
    whole = window_of(records(program))
    assert whole.steps.size * whole.ranks < work.BLOCK_CELLS
    monkeypatch.setattr(work, "BLOCK_CELLS", cells)
    parts = window_of(records(program))
    assert {name: seconds.tolist() for name, seconds in parts.work.items()} == {
        name: seconds.tolist() for name, seconds in whole.work.items()
    }


# Where in a step work is


def work_before(window: Window, event: int) -> dict[str, list[float]]:
    found = {name: 1000 * seconds[event] for name, seconds in window.work.items() if seconds[event].max() > 1e-9}
    return {name: [round(float(value), 6) for value in values] for name, values in found.items()}


def test_idling_before_forward_is_not_taken_for_a_slow_forward() -> None:
    program = Program(meet="all_reduce", work={"pause": late(Program(), 3, 15)})
    window = window_of(records(program))
    assert work_before(window, 3) == {"input": [1] * 4, "other": [0, 0, 0, 15]}
    assert work_before(window, 4) == {"forward": [20] * 4, "backward": [40] * 4}


def test_idling_after_forward_is_not_taken_for_a_slow_backward() -> None:
    program = Program(meet="all_reduce", work={"late_pause": late(Program(), 3, 15)})
    window = window_of(records(program))
    assert work_before(window, 3) == {"input": [1] * 4}
    assert work_before(window, 4) == {"forward": [20] * 4, "backward": [40] * 4, "other": [0, 0, 0, 15]}


def test_a_call_in_the_middle_of_forward_is_found_there(
    make_records: MakeAny, make_data: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny
) -> None:
    """Batch norm over ranks after 6 of 10 ms; rank 1 idles 30 ms after forward, so its record alone does not say."""
    steps = make_records(
        [[60, 60]] * 4,
        forward=[[10, 10]] * 4,
        backward=[[44, 14]] * 4,
        arrival=[[25, 55]] * 4,
        done=[[55, 55]] * 4,
        collective=[[1, 1]] * 4,
        optimizer=[[5, 5]] * 4,
    )
    calls = [(rank, step, 0, step, 60 * step + 6, 1, 60 * step + 7) for step in range(4) for rank in (0, 1)]
    logs = {rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 2, inside="forward"),)) for rank in (0, 1)}
    window = window_of(make_data(steps, 2, events=logs, collectives=make_calls(calls)))
    assert work_before(window, 0) == {"forward": [6, 6]}
    assert work_before(window, 1) == {"forward": [4, 4], "backward": [14, 14], "other": [0, 30]}
    assert work_before(window, 2) == {"optimizer": [5, 5]}


def test_a_barrier_between_phases_comes_after_the_evaluation_of_one_rank() -> None:
    program = Program(work={"evaluation": np.outer(np.arange(12) % 4 == 0, [30, 0, 0, 0])}, barrier_after=(0, 4, 8))
    window = window_of(records(program))
    assert window.uses == ("barrier",)
    first = int(np.flatnonzero(window.kind == CALL)[1])
    assert work_before(window, first) == {"evaluation": [30, 0, 0, 0]}
    assert window.odd.tolist() == [step % 4 == 0 for step in range(12)]
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)


@pytest.mark.parametrize("called_ms", [0, 2])
def test_what_an_accelerator_did_not_do_is_host(called_ms: int) -> None:
    """Of 77 ms it was busy for 70: 65 in phases, 1 reducing, 4 in what no phase knows. 1 was input, 6 nothing.

    An accelerator that is in a collective which the program called does not stand empty.
    """
    run = records(Program(ranks=2, steps=4, meet="all_reduce", meet_ms=called_ms, work={"tail_pause": 10}))
    shared = [name for name in DeviceStep.model_fields if name in run.steps.columns]
    logs = {
        rank: replace(
            run.events[rank],
            device_steps=tuple(
                DeviceStep(kind="device_step", t_ns=0, busy_ns=70 * MS, **{name: row[name] for name in shared})
                for row in run.steps.filter(pl.col("rank") == rank).iter_rows(named=True)
            ),
        )
        for rank in (0, 1)
    }
    window = window_of(replace(run, events=logs))
    assert window.wall_s == pytest.approx(np.full((4, 2), 0.077 + called_ms / 1000))
    assert ms_per_step(window, "host") == [6, 6]
    assert ms_per_step(window, "other") == [4 + called_ms, 4 + called_ms]
    assert ms_per_step(window, "input") == [1, 1]
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)
    assert window.uses == ()
    gap = "collectives that the program calls are in 'other': when the accelerator was in them is not known"
    assert texts(window.gaps) == [gap]


# Who meets in a call


def called(
    make: dict[str, Any], op: str, moments: list[tuple[float, float, float]], *, root: int | None = None, **kind: Any
) -> RunData:
    """One step of 100 ms; ``moments`` of one call: begin, how long blocked, end of each rank (ms)."""
    ranks = len(moments)
    steps = make["records"]([[100.0] * ranks] * 2, collective=[[blocked for _, blocked, _ in moments]] * 2)
    calls = [
        (rank, step, 0, step, 100 * step + begin, blocked, 100 * step + end)
        for step in range(2)
        for rank, (begin, blocked, end) in enumerate(moments)
    ]
    kinds = (make["kind"](op, ranks, root=root, **kind),)
    logs = {rank: make["log"](rank, collective_kinds=kinds) for rank in range(ranks)}
    return make["data"](steps, ranks, kind="run", events=logs, collectives=make["calls"](calls))


@pytest.fixture
def make(
    make_records: MakeAny, make_data: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny
) -> dict[str, Any]:
    return {"records": make_records, "data": make_data, "calls": make_calls, "kind": make_kind, "log": make_log}


def test_a_collective_that_was_started_early_has_arrived_early(make: dict[str, Any]) -> None:
    window = window_of(called(make, "all_reduce", [(10, 20, 70), (40, 5, 70)]))
    assert window.early_s[0] == pytest.approx([0.040, 0.025])
    assert window.transfer_s[0] == pytest.approx([0.030, 0.030])  # it was under way since 40
    assert window.waits[0].all()
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)


def test_of_two_calls_in_flight_the_second_takes_what_it_ends_after_the_first(make: dict[str, Any]) -> None:
    """Started at 10 and 12 ms, waited for from 50 ms on, and over at 60 and 75 ms."""
    steps = make["records"]([[100.0] * 2] * 2, collective=[[25.0, 25.0]] * 2)
    moments = [(10, 10, 60), (12, 15, 75)]
    calls = [
        (rank, step, 0, 2 * step + place, 100 * step + begin, blocked, 100 * step + end)
        for rank in range(2)
        for step in range(2)
        for place, (begin, blocked, end) in enumerate(moments)
    ]
    logs = {rank: make["log"](rank, collective_kinds=(make["kind"]("all_reduce", 2),)) for rank in range(2)}
    run = make["data"](steps, 2, kind="run", events=logs, collectives=make["calls"](calls))
    window = window_of(run)
    assert window.transfer_s[:2, 0] == pytest.approx([0.050, 0.015])
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)


LAYERS, BARRIER = 4, 1


def gathered_ahead(
    computes_ms: tuple[float, float], takes_ms: float
) -> tuple[list[list[tuple[float, float, float]]], float]:
    """Layers of two ranks, whose parameters are gathered while they compute the layer before; then they meet.

    For each rank begin, how long blocked, and end of each call, in ms; and how long all of it takes.
    """
    now_ms, network_ms = [0.0, 0.0], 0.0
    calls: list[list[tuple[float, float, float]]] = [[], []]
    for _ in range(LAYERS):
        network_ms = max(*now_ms, network_ms) + takes_ms
        for rank, computes in enumerate(computes_ms):
            stood = now_ms[rank] + computes
            left = max(stood, network_ms) + 0.01  # which Python takes to see that it is there
            calls[rank].append((now_ms[rank], left - stood, left))
            now_ms[rank] = left
    met_ms = max(now_ms) + BARRIER
    for rank in range(2):
        calls[rank].append((now_ms[rank], met_ms - now_ms[rank], met_ms))
    return calls, met_ms


@pytest.mark.parametrize("takes_ms", [3, 9, 12, 20])
def test_a_slow_rank_is_not_held_up_by_calls_that_its_computing_hides(make: dict[str, Any], takes_ms: float) -> None:
    calls, step_ms = gathered_ahead((10, 14), takes_ms)
    rows = [
        (
            rank,
            step,
            int(place == LAYERS),
            step * (LAYERS + 1) + place,
            begin + step_ms * step,
            blocked,
            end + step_ms * step,
        )
        for rank in range(2)
        for step in range(4)
        for place, (begin, blocked, end) in enumerate(calls[rank])
    ]
    steps = make["records"](
        [[step_ms] * 2] * 4, collective=[[sum(b for _, b, _ in calls[rank]) for rank in (0, 1)]] * 4
    )
    kinds = (make["kind"]("all_gather_into_tensor", 2), make["kind"]("barrier", 2, id=1))
    logs = {rank: make["log"](rank, collective_kinds=kinds) for rank in range(2)}
    window = window_of(make["data"](steps, 2, kind="run", events=logs, collectives=make["calls"](rows)))
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)
    alike = replay(like_median(window, [1])).total_s / 4
    assert alike == pytest.approx(
        gathered_ahead((10, 10), takes_ms)[1] / 1e3, rel=0.1
    )  # the first call of a step: 4 ms


def test_the_root_of_a_broadcast_that_nobody_keeps_does_not_wait(make: dict[str, Any]) -> None:
    window = window_of(called(make, "broadcast", [(10, 1, 11), (5, 8, 13), (40, 1, 41)], root=0))
    assert window.meets[0].tolist() == [True, False, False]
    assert window.waits[0].tolist() == [True, True, False]
    assert window.transfer_s[0] == pytest.approx([0.001, 0.003, 0.001])
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)


def test_the_root_of_a_broadcast_that_is_kept_waits_as_all_do(make: dict[str, Any]) -> None:
    window = window_of(called(make, "broadcast", [(10, 32, 42), (5, 37, 42), (40, 2, 42)], root=0))
    assert window.meets[0].all()
    assert window.waits[0].all()
    assert window.transfer_s[0] == pytest.approx([0.002] * 3)


def test_only_those_whom_a_late_rank_keeps_wait_for_it(make: dict[str, Any]) -> None:
    """A tree: rank 2 passes data on to rank 3, which is late; rank 1 has long gone."""
    window = window_of(called(make, "broadcast", [(10, 1, 11), (9, 3, 12), (10, 31, 41), (40, 2, 42)], root=0))
    assert window.meets[0].all()
    assert window.waits[0].tolist() == [False, False, True, True]
    assert window.transfer_s[0] == pytest.approx([0.001, 0.003, 0.001, 0.002])


def test_ranks_outside_of_a_group_pass_its_calls_by(make: dict[str, Any]) -> None:
    steps = make["records"]([[100.0] * 3] * 2)
    rows = [
        (rank, step, 0, step, 100 * step + 10 * (rank + 1), 30 - 10 * rank, 100 * step + 40)
        for step in (0, 1)
        for rank in (0, 1)
    ]
    kind = make["kind"]("all_reduce", 2, group="pair")
    logs = {rank: make["log"](rank, collective_kinds=(kind,)) for rank in (0, 1)}
    run = make["data"](steps, 3, kind="run", events=logs, collectives=make["calls"](rows))
    window = window_of(run)
    for of_calls in (window.meets, window.waits):
        assert of_calls[0].tolist() == [True, True, False]
    assert window.transfer_s[0] == pytest.approx([0.020, 0.020, 0])
    assert worked_s(window)[:, 2] == pytest.approx([0.1, 0.1])
    assert replay(window).end_s == pytest.approx(recorded_ends_s(window), abs=EXACT_S)


def test_others_wait_for_a_call_that_one_rank_makes_inside_its_evaluation(make: dict[str, Any]) -> None:
    """Rank 0 evaluates for 50 ms, then meets the others in a barrier of its evaluation, which takes it 2 more."""
    steps = make["records"]([[100.0, 100.0]] * 2, evaluation=[[52, 0]] * 2, collective=[[0, 47]] * 2)
    rows = [(0, step, 0, step, 100 * step + 50, 2, 100 * step + 52) for step in (0, 1)]
    rows += [(1, step, 0, step, 100 * step + 5, 47, 100 * step + 52) for step in (0, 1)]
    logs = {
        0: make["log"](0, collective_kinds=(make["kind"]("barrier", 2, inside="evaluation"),)),
        1: make["log"](1, collective_kinds=(make["kind"]("barrier", 2),)),
    }
    window = window_of(make["data"](steps, 2, kind="run", events=logs, collectives=make["calls"](rows)))
    assert window.kind.tolist() == [CALL, STEP] * 2
    assert work_before(window, 0) == {"evaluation": [50, 0], "other": [0, 5]}
    assert window.wall_s - worked_s(window) == pytest.approx(np.array([[0.002, 0.047]] * 2))


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint"])
def test_to_wait_inside_an_evaluation_is_not_to_evaluate(make: dict[str, Any], phase: str) -> None:
    """Both ranks are in the phase for 52 ms. Rank 0 works for 50 of them; rank 1 waits for the score after 5."""
    steps = make["records"]([[100.0, 100.0]] * 2, **{phase: [[52, 52]] * 2}, collective=[[2, 47]] * 2)
    rows = [(0, step, 0, step, 100 * step + 50, 2, 100 * step + 52) for step in (0, 1)]
    rows += [(1, step, 0, step, 100 * step + 5, 47, 100 * step + 52) for step in (0, 1)]
    logs = {rank: make["log"](rank, collective_kinds=(make["kind"]("all_reduce", 2, inside=phase),)) for rank in (0, 1)}
    window = window_of(make["data"](steps, 2, kind="run", events=logs, collectives=make["calls"](rows)))
    assert window.kind.tolist() == [CALL, STEP] * 2
    assert window.uses == (f"all_reduce in {phase}",)
    assert ms_per_step(window, phase) == [50, 5]
    assert window.wall_s - worked_s(window) == pytest.approx(np.array([[0.002, 0.047]] * 2))
    alone_s = sum(sequential(window).values())
    assert alone_s.sum(axis=0) == pytest.approx([0.1, 0.01])
    assert useful_s(window).sum() == 0


def test_evaluation_that_all_ranks_share_stays_useful_though_they_meet_in_it(make: dict[str, Any]) -> None:
    run = called(make, "all_reduce", [(10, 30, 40), (30, 10, 40)], inside="evaluation")
    shared = run.steps.with_columns((pl.lit(40) * MS).cast(pl.Int64).alias("evaluation_ns"))
    window = window_of(replace(run, steps=shared))
    assert ms_per_step(window, "evaluation") == [10, 30]
    assert useful_s(window).mean(axis=0) == pytest.approx([0.01, 0.03])


def test_calls_that_nobody_waited_for_or_that_find_no_mate_are_no_events(make: dict[str, Any]) -> None:
    met = called(make, "all_reduce", [(10, 5, 15), (12, 3, 15)])
    alone = met.collectives.with_columns(pl.lit(1).cast(pl.Int64).alias("kind"), pl.col("seq") + 9).filter(
        pl.col("rank") == 0
    )
    lost = make["kind"]("all_gather", 2, id=1)
    logs = {
        rank: replace(event, collective_kinds=(*event.collective_kinds, lost)) for rank, event in met.events.items()
    }
    calls = pl.concat([met.collectives, alone]).sort("rank", "step", maintain_order=True)
    window = window_of(replace(met, events=logs, collectives=calls))
    assert window.uses == ("all_reduce",)
    (gap,) = window.gaps
    assert gap.kind == "blocked in other"
    assert (
        gap.text
        == "collectives could not all be matched across ranks: 'other' holds the 2.5 ms per step that they took"
    )
    launched = met.collectives.with_columns(
        pl.lit(None).cast(pl.Int64).alias(name) for name in ("blocked_ns", "end_ns")
    )
    assert refused(replace(met, collectives=launched)).startswith("no collective")


def test_a_call_that_was_over_when_it_was_waited_for_took_no_longer_than_on_the_rank_that_saw_that_first(
    make: dict[str, Any],
) -> None:
    window = window_of(called(make, "all_reduce", [(10, 0, 30), (12, 0, 80)]))
    at = window.kind == CALL
    assert window.transfer_s[at] == pytest.approx(np.full((2, 2), 0.018))
    assert replay(window).total_s == pytest.approx(window.measured_s)
    waiting = window_of(called(make, "all_reduce", [(10, 20, 30), (12, 68, 80)]))
    assert waiting.transfer_s[at][:, 1] == pytest.approx([0.068, 0.068]), "its time is known where it blocks"


@pytest.mark.parametrize(("beyond_ms", "is_said"), [(60, True), (30, False)])
def test_much_time_in_collectives_that_are_not_identified_is_no_work(
    make: dict[str, Any], beyond_ms: int, is_said: bool
) -> None:
    run = called(make, "all_reduce", [(10, 5, 15), (12, 3, 15)])
    blocked_ns = pl.when(pl.col("rank") == 0).then(5 * MS).otherwise(3 * MS)
    window = window_of(replace(run, steps=run.steps.with_columns(collective_ns=blocked_ns + beyond_ms * MS)))
    assert [(gap.kind, gap.seconds) for gap in window.gaps] == (
        [("blocked in other", pytest.approx(beyond_ms / 1000))] if is_said else []
    )
    assert is_work(window, "other") != is_said


def told(first: tuple[int | None, ...], later: dict[int, int]) -> RunData:
    """A run of 12 steps and two ranks, with elements in their ``first`` step, and of rank 1 in ``later`` ones."""
    run = records(Program(ranks=2))
    begin, rank, step = run.steps["step"].min(), pl.col("rank"), pl.col("step")
    each = pl.when(step == begin).then(pl.lit(pl.Series(list(first), dtype=pl.Int64)).gather(rank))
    for number, elements in later.items():
        each = each.when((step == number) & (rank == 1)).then(pl.lit(elements))
    return replace(run, steps=run.steps.with_columns(elements=each.cast(pl.Int64)))


def test_samples_of_one_size_are_told_once_and_count_in_every_step() -> None:
    assert window_of(told((64, 64), {})).elements is None, "all ranks have the same"
    window = window_of(told((64, 128), {}))
    assert window.elements is not None
    assert (window.elements == [64.0, 128.0]).all()
    last = int(window.steps[-1])
    grown = window_of(told((64, 64), {last - 1: 96, last: 96})).elements
    assert grown is not None
    assert grown[:, 1].tolist()[-4:] == [64.0, 64.0, 96.0, 96.0]
    before = window_of(told((None, None), {last - 1: 96, last: 96})).elements
    assert before is not None
    assert np.isnan(before[:-2]).all(), "an older run: what came before is not known"
