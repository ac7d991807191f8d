"""Steps and collectives of all ranks on one clock: waits are where they belong, and every step closes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.clock.shared_clock import shared_clock
from allpull.analyse.run import metrics
from allpull.analyse.steps.grid import arrange
from allpull.analyse.steps.phases import Phases
from allpull.analyse.timeline import PARTS, step_parts
from allpull.rundir.read.counters import PINGS_SCHEMA
from allpull.rundir.read.run import RunData
from allpull.schema.events import Buckets, DeviceStep, ProcessGroup
from allpull.schema.gap import texts

MakeAny = Callable[..., Any]
STEPS = 5
PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def phases_of(run: RunData) -> Phases:
    whole = AlignedRun(run)
    steps = np.unique(run.steps["step"].to_numpy())
    return whole.phases(arrange(whole.steps, steps, run.record.ranks), steps)


def per_rank_ms(phases: Phases, name: str) -> list[float] | None:
    times = phases.seconds[name]
    return None if times is None else [pytest.approx(1000 * mean, abs=1e-6) for mean in times.mean(axis=0)]


@pytest.fixture
def buffers(
    make_records: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> Any:
    """Two ranks of default DDP with batch norm, in ms; rank 1 comes to forward 100 ms late in every step.

    Forward broadcasts the buffers from rank 0, which is blocked until rank 1 is there (as Gloo does it), takes 30, and
    backward 60 of which 20 are its reduction. So rank 0 waits 100 ms, in forward, before it may compute.
    """

    def make(**changes: Any) -> RunData:
        walls = [[222, 222]] * STEPS
        spans = {"forward": [[30, 30]] * STEPS, "backward": [[80, 80]] * STEPS, "optimizer": [[8, 8]] * STEPS}
        moments = {"arrival": [[192, 192]] * STEPS, "done": [[212, 212]] * STEPS}
        records = make_records(walls, **spans, **moments, collective=[[102, 2]] * STEPS)
        calls = []
        for step in range(STEPS):
            at = 222 * step
            calls += [(0, step, 3, step, at, 102, at + 102), (1, step, 0, step, at + 100, 2, at + 102)]
        kinds = {
            rank: make_kind("broadcast", 2, id=3 - 3 * rank, size_bytes=6168, root=0, inside="forward")
            for rank in (0, 1)
        }
        events = {rank: make_log(rank, collective_kinds=(kind,)) for rank, kind in kinds.items()}
        return make_data(records, 2, **{"events": events, "collectives": make_calls(calls), **changes})

    return make


def test_a_rank_late_before_forward_is_waited_for_and_no_slow_forward(buffers: Any) -> None:
    phases = phases_of(buffers())
    assert per_rank_ms(phases, "wait") == [100, 0]
    assert per_rank_ms(phases, "transfer") == [22, 22]
    assert per_rank_ms(phases, "forward") == [30, 30]
    assert per_rank_ms(phases, "backward") == [60, 60]
    assert per_rank_ms(phases, "other") == [2, 102]
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
    assert phases.gaps == ()


def test_calls_that_find_no_mate_are_in_other_and_said(buffers: Any, make_log: MakeAny) -> None:
    run = buffers()
    phases = phases_of(buffers(events={**run.events, 1: make_log(1)}))
    assert per_rank_ms(phases, "wait") == [0, 0]
    assert per_rank_ms(phases, "forward") == [30, 30]
    assert per_rank_ms(phases, "other") == [104, 104]
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
    (gap,) = phases.gaps
    assert (gap.kind, gap.seconds) == ("blocked in other", pytest.approx(0.052, abs=0.0005))
    assert gap.text.startswith("'other' holds 52 ms per step in collectives that could not be matched across ranks")


def test_calls_that_are_only_launched_block_nobody_however_long_that_takes(buffers: Any) -> None:
    """As a comm hook calls them; their time is the caller's own, on a busy machine much of it."""
    run = buffers()
    unwaited = run.collectives.with_columns(pl.lit(None, pl.Int64).alias(name) for name in ("blocked_ns", "end_ns"))
    phases = phases_of(buffers(collectives=unwaited))
    assert per_rank_ms(phases, "other") == [104, 104]
    assert phases.gaps == ()
    numbers = [number for of_rank in ([0, 2, 3, 4], [0, 1, 2, 3, 4]) for number in of_rank]  # one call is missing
    lost = unwaited.filter((pl.col("rank") == 1) | (pl.col("seq") != 1))
    assert lost.sort("rank", "seq")["seq"].to_list() == numbers
    most = sum(gap.seconds or 0 for gap in phases_of(buffers(collectives=lost)).gaps)
    assert most == pytest.approx(0.102 / (2 * STEPS))  # only of the step in which nothing is known of the call


def test_a_program_without_ddp_waits_in_its_own_calls_alone(
    make_records: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    """Its own all-reduce after backward: no arrivals are missing, and backward holds no collective."""
    records = make_records([[100, 100]], backward=[[60, 30]], collective=[[10, 40]])
    calls = make_calls([(0, 0, 0, 0, 80, 10, 90), (1, 0, 0, 0, 50, 40, 90)])
    logs = {rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 2),)) for rank in (0, 1)}
    run = make_data(records, 2, kind="run", events=logs, collectives=calls)
    phases = phases_of(run)
    assert per_rank_ms(phases, "wait") == [0, 30]
    assert per_rank_ms(phases, "transfer") == [10, 10]
    assert phases.gaps == ()
    cut = Buckets(kind="buckets", step=4, sizes_bytes=[8], t_ns=0)
    ddp = {0: make_log(0, collective_kinds=logs[0].collective_kinds, buckets=(cut,)), 1: logs[1]}
    assert (
        "arrivals at collectives were not recorded in 2 of 2"
        in phases_of(make_data(records, 2, kind="run", events=ddp, collectives=calls)).gaps[0].text
    )


def on_two_hosts(run: RunData, *, ahead_ns: int, drift: float = 0.0) -> dict[str, Any]:
    """The same run with rank 1 on a host whose clock is ``ahead_ns`` ahead, and runs faster by ``drift``."""
    origin = 10**12

    def moved(frame: pl.DataFrame, moments: tuple[str, ...]) -> pl.DataFrame:
        theirs = pl.col("rank") == 1
        shift = ahead_ns + ((pl.col(moments[0]) - origin) * drift).round().cast(pl.Int64)
        return frame.with_columns(
            pl.when(theirs).then(pl.col(name) + shift).otherwise(name).alias(name) for name in moments
        )

    return {
        "steps": moved(run.steps, ("begin_ns", "end_ns", "arrival_ns", "done_ns")),
        "collectives": moved(run.collectives, ("begin_ns", "end_ns")),
    }


def pings_to(first: str, *, of: str, ahead_ns: int, trip_ns: int, at_ns: list[int], drift: float = 0.0) -> pl.DataFrame:
    """Symmetric pings of ``of``, whose clock is ahead of that of ``first``."""
    rows = []
    for at in at_ns:
        sent = at + ahead_ns + round((at - 10**12) * drift)
        there = at + trip_ns // 2
        stamps = (sent, there, there, sent + trip_ns)
        rows.append((of, first, *stamps, *stamps))
    return pl.DataFrame(rows, schema=PINGS_SCHEMA, orient="row")


def test_hosts_whose_clocks_are_seconds_apart_give_the_same_waits(buffers: Any, make_data: MakeAny) -> None:
    plain = buffers()
    expected = phases_of(plain)
    ahead_ns = 7_200_000_000_123
    moved = on_two_hosts(plain, ahead_ns=ahead_ns)
    pings = pings_to("host-a", of="host-b", ahead_ns=ahead_ns, trip_ns=40_000, at_ns=[10**12 - 10**9, 10**12 + 10**10])
    run = make_data(
        moved["steps"], 2, boots=["a", "b"], events=plain.events, collectives=moved["collectives"], pings=pings
    )
    found = phases_of(run)
    for name in ("wait", "transfer", "forward", "backward", "other"):
        assert per_rank_ms(found, name) == [1000 * mean for mean in expected.seconds[name].mean(axis=0)], name  # type: ignore[union-attr]
    assert found.gaps == ()
    bound_s = shared_clock(run.headers, run.pings, run.steps).bound_s
    assert bound_s is not None
    assert 20e-6 <= bound_s < 60e-6  # half a round trip, and a little for drift
    assert metrics(AlignedRun(run)).clock_error_s == bound_s


def test_hosts_that_drift_apart_are_followed(buffers: Any, make_data: MakeAny) -> None:
    plain = buffers()
    moved = on_two_hosts(plain, ahead_ns=10**9, drift=50e-6)
    pings = pings_to(
        "host-a",
        of="host-b",
        ahead_ns=10**9,
        trip_ns=20_000,
        at_ns=[10**12 - 60 * 10**9, 10**12 + 60 * 10**9],
        drift=50e-6,
    )
    run = make_data(
        moved["steps"], 2, boots=["a", "b"], events=plain.events, collectives=moved["collectives"], pings=pings
    )
    wait = phases_of(run).seconds["wait"]
    assert wait is not None
    assert wait.mean(axis=0) == pytest.approx([0.1, 0], abs=100e-6)


def test_a_wait_that_clocks_cannot_tell_is_called_so(buffers: Any, make_data: MakeAny) -> None:
    plain = buffers()
    moved = on_two_hosts(plain, ahead_ns=5 * 10**9)
    bad = pings_to(
        "host-a", of="host-b", ahead_ns=5 * 10**9, trip_ns=400_000_000, at_ns=[10**12 - 10**9, 10**12 + 10**10]
    )
    run = make_data(
        moved["steps"], 2, boots=["a", "b"], events=plain.events, collectives=moved["collectives"], pings=bad
    )
    assert any("not resolvable" in gap and "aligned to within 20" in gap for gap in texts(phases_of(run).gaps))
    silent = make_data(moved["steps"], 2, boots=["a", "b"], events=plain.events, collectives=moved["collectives"])
    phases = phases_of(silent)
    assert (phases.seconds["wait"], metrics(AlignedRun(silent)).clock_error_s) == (None, None)
    assert any("clocks of the hosts are not aligned; 'other' holds the 72 ms" in gap for gap in texts(phases.gaps))
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
    uses = metrics(AlignedRun(silent)).collectives
    assert uses is not None
    assert [(use.op, use.calls, use.wait_s, use.algbw_bytes_per_s) for use in uses] == [("broadcast", 10, None, None)]


def test_containers_of_one_boot_have_one_clock_whatever_they_are_called(buffers: Any) -> None:
    run = buffers(boots=["a", "a"])
    assert shared_clock(run.headers, run.pings, run.steps).bound_s == 0


def test_one_name_for_two_machines_is_no_clock(buffers: Any) -> None:
    run = buffers(boots=["a", "b"])
    headers = {rank: header.model_copy(update={"host": "same"}) for rank, header in run.headers.items()}
    assert shared_clock(headers, run.pings, run.steps).bound_s is None


def device_log(make_log: MakeAny, rank: int, **times: int | None) -> Any:
    ms = {name: None if value is None else value * 10**6 for name, value in times.items()}
    return make_log(
        rank, device_steps=(DeviceStep.model_validate({"kind": "device_step", "step": 0, "t_ns": 0, **ms}),)
    )


def device_phases(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny, wall: int, **times: int
) -> Mapping[str, Any]:
    records = make_records([[wall]], input=[[10]], forward=[[3]], backward=[[4]], optimizer=[[1]])
    run = make_data(records, 1, events={0: device_log(make_log, 0, **times)})
    found = phases_of(run)
    assert found.closure_error == pytest.approx(0, abs=1e-12)
    return {name: value and round(1000 * value, 6) for name, value in found.means_s().items() if value is not None}


def test_on_a_device_its_own_clock_counts(make_records: MakeAny, make_log: MakeAny, make_data: MakeAny) -> None:
    """The host issues forward in 3 ms; the device takes 40. 100 ms = 10 input + 85 busy + 5 empty."""
    found = device_phases(
        make_records, make_log, make_data, 100, forward_ns=40, backward_ns=40, optimizer_ns=5, busy_ns=85
    )
    device = {"forward": 40, "backward": 40, "optimizer": 5, "host": 5}
    assert found == {"input": 10, **device, "wait": 0, "transfer": 0, "other": 0}


def test_a_launch_bound_device_is_empty_inside_its_phases(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    """80 ms from first to last kernel, of which it computed in 60: each phase gives a quarter to ``host``."""
    found = device_phases(
        make_records, make_log, make_data, 100, forward_ns=40, backward_ns=36, optimizer_ns=4, busy_ns=60
    )
    assert (found["forward"], found["backward"], found["optimizer"]) == (30, 27, 3)
    assert found["host"] == 20 + 10  # inside the phases, and between them


def test_input_that_the_device_did_not_have_to_wait_for_costs_nothing(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    found = device_phases(
        make_records, make_log, make_data, 100, forward_ns=45, backward_ns=45, optimizer_ns=6, busy_ns=96
    )
    assert (found["input"], found["host"]) == (4, 0)


def test_work_of_the_device_outside_known_phases_is_other(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    found = device_phases(
        make_records, make_log, make_data, 100, forward_ns=40, backward_ns=30, optimizer_ns=5, busy_ns=90
    )
    assert (found["other"], found["host"]) == (15, 0)


def test_the_collectives_of_backward_are_taken_from_the_devices_backward(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    base_ms = 10**6
    times = {"forward_ns": 20, "backward_ns": 70, "optimizer_ns": 5, "busy_ns": 95}
    logs = {
        rank: device_log(make_log, rank, **times, arrival_ns=base_ms + arrival, done_ns=base_ms + 90)
        for rank, arrival in enumerate((50, 80))
    }
    records = make_records([[95, 95]], forward=[[2, 2]], backward=[[2, 2]], optimizer=[[1, 1]])
    phases = phases_of(make_data(records, 2, events=logs))
    assert per_rank_ms(phases, "wait") == [30, 0]
    assert per_rank_ms(phases, "transfer") == [10, 10]
    assert per_rank_ms(phases, "backward") == [30, 60]


@st.composite
def steps_with_calls(draw: st.DrawFn) -> dict[str, Any]:
    """Any numbers whatever, in ms, sound or not: spans, moments, calls and what a device says."""
    ranks = draw(st.integers(1, 3))

    def table(most: int) -> list[list[int | None]]:
        return [[draw(st.none() | st.integers(0, most)) for _ in range(ranks)] for _ in range(3)]

    names = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "arrival", "done", "collective")
    calls = []
    for rank in range(ranks):
        for step in range(3):
            for _ in range(draw(st.integers(0, 2))):
                begin, length = draw(st.integers(0, 400)), draw(st.integers(0, 200))
                blocked = draw(st.none() | st.integers(0, length))
                end = None if blocked is None else begin + length
                seq = draw(st.none() | st.integers(0, 3))
                calls.append((rank, step, draw(st.integers(0, 2)), seq, begin, blocked, end))
    wall = [[draw(st.integers(1, 200)) for _ in range(ranks)] for _ in range(3)]
    device = draw(st.booleans())
    busy = [draw(st.none() | st.integers(0, 300)) for _ in range(ranks)] if device else []
    return {"wall": wall, "spans": {name: table(150) for name in names}, "calls": calls, "busy": busy}


@PROPERTY
@given(made=steps_with_calls(), two_hosts=st.booleans())
def test_every_step_closes_whatever_was_recorded(
    make_records: MakeAny,
    make_calls: MakeAny,
    make_kind: MakeAny,
    make_log: MakeAny,
    make_data: MakeAny,
    made: dict[str, Any],
    two_hosts: bool,
) -> None:
    ranks = len(made["wall"][0])
    records = make_records(made["wall"], **made["spans"])
    kinds = tuple(make_kind(op, ranks, id=place, root=0) for place, op in enumerate(("all_reduce", "broadcast")))
    logs = {}
    for rank in range(ranks):
        spoken = made["busy"][rank] * 10**6 if made["busy"] and made["busy"][rank] is not None else None
        device = [DeviceStep(kind="device_step", step=0, forward_ns=5 * 10**6, busy_ns=spoken, t_ns=0)]
        logs[rank] = make_log(rank, collective_kinds=kinds, device_steps=tuple(device if made["busy"] else ()))
    boots = [f"boot{rank % 2}" if two_hosts else "boot" for rank in range(ranks)]
    run = make_data(records, ranks, events=logs, collectives=make_calls(made["calls"]), boots=boots)
    phases = phases_of(run)
    known = {name: times for name, times in phases.seconds.items() if times is not None}
    assert all((times >= 0).all() for times in known.values())
    excess = sum(known.values()) - np.array(made["wall"]) / 1000
    assert (excess > -1e-12).all()  # nothing of a step is lost
    assert phases.closure_error == pytest.approx(
        (excess.sum(axis=0) / (np.array(made["wall"]) / 1000).sum(axis=0)).max(), abs=1e-9
    )
    parts = step_parts(AlignedRun(run), ranks)
    assert parts.height == 3 * ranks
    assert (parts.select(pl.min_horizontal(*PARTS))[:, 0] >= 0).all()


def test_the_timeline_has_the_same_parts_as_the_phases(buffers: Any) -> None:
    run = buffers()
    phases, parts = phases_of(run), step_parts(AlignedRun(run), 2)
    for name in ("forward", "backward", "wait", "transfer", "optimizer"):
        times = phases.seconds[name]
        assert times is not None
        by_rank = parts.group_by("rank", maintain_order=True).agg(pl.col(name).mean())[name].to_list()
        assert by_rank == pytest.approx((times.mean(axis=0) * 1e9).tolist()), name
    assert parts["blocked"].to_list() == [0] * (2 * STEPS)


def test_ways_that_are_not_recorded_are_named_where_no_arrival_is(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    joined = ProcessGroup(kind="process_group", backend="gloo", ranks=2, unobserved=["send and receive"], t_ns=0)
    events = {rank: make_log(rank, process_groups=(joined,)) for rank in (0, 1)}
    (gap,) = phases_of(make_data(make_records([[100, 100]] * STEPS), 2, kind="run", events=events)).gaps
    assert gap.kind == "arrivals"
    assert gap.text.startswith("ranks may exchange data by send and receive, which is not recorded: ")


@pytest.mark.parametrize(
    ("parallel", "missed"),
    [(None, True), ({}, True), ({"overlap": False}, False), ({"strategy": "fsdp", "overlap": True}, False)],
)
def test_arrivals_are_missed_only_where_gradients_are_reduced_inside_backward(
    make_records: MakeAny,
    make_calls: MakeAny,
    make_kind: MakeAny,
    make_log: MakeAny,
    make_data: MakeAny,
    parallel: Any,
    missed: bool,
) -> None:
    """Two ranks that call an all-reduce after backward, to which rank 1 comes 10 ms late: known by the call itself."""
    spans = {"forward": [[20, 30]] * STEPS, "backward": [[50, 50]] * STEPS}
    records = make_records([[100, 100]] * STEPS, **spans, collective=[[30, 20]] * STEPS)
    calls = [
        (rank, step, 0, step, 100 * step + 70 + 10 * rank, 30 - 10 * rank, 100 * step + 100)
        for step in range(STEPS)
        for rank in (0, 1)
    ]
    logs = {rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 2, id=0),)) for rank in (0, 1)}
    spec = {} if parallel is None else {"parallel": parallel}
    phases = phases_of(make_data(records, 2, collectives=make_calls(calls), events=logs, spec=spec))
    assert per_rank_ms(phases, "wait") == [10, 0]
    assert per_rank_ms(phases, "transfer") == [20, 20]
    assert any("arrivals at collectives were not recorded" in gap for gap in texts(phases.gaps)) is missed
