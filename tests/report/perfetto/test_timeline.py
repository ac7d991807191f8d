"""A timeline that Perfetto may open: legal on every track, exact where it says so, whole or not there at all."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.timeline import PARTS, place_parts
from allpull.errors import BadInput
from allpull.report.perfetto import timeline
from allpull.report.perfetto.trace_events import lanes
from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.schema.base import tag

MS = 10**6
BASE_NS = 10**15
STEP_NS = 100 * MS
STEPS = 6
HOSTILE = "</script>\x1b[31m\"\\'\u202e\x00" + "x" * 500


def lines(path: Path, *values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def header(rank: int, ranks: int, host: str) -> dict[str, Any]:
    clock = {"monotonic_ns": 0, "realtime_ns": 0}
    who = {"rank": rank, "local_rank": rank, "ranks": ranks, "host": host, "boot_id": "b", "pid": 1, "budget": 1 << 24}
    return {"schema": tag("steps"), **who, "clock": clock, "boundary": "optimizer.step"}


def step(number: int, late_ms: int = 0, **changes: Any) -> dict[str, Any]:
    """100 ms: 5 input, 30 forward, 50 backward of which 10 in its reduction, 5 optimizer."""
    begin = BASE_NS + number * STEP_NS
    moments = {"begin_ns": begin, "end_ns": begin + STEP_NS}
    moments |= {"arrival_ns": begin + (75 + late_ms) * MS, "done_ns": begin + 85 * MS}
    spans = {"input_ns": 5 * MS, "forward_ns": 30 * MS, "backward_ns": 50 * MS, "optimizer_ns": 5 * MS}
    return {"step": number, "epoch": number // 3, "samples": 8, **moments, **spans, **changes}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run(ranks=2, extra=…)``: a run of ``STEPS`` steps; ``extra(rank, number)`` changes a step."""

    def make(ranks: int = 2, steps: int = STEPS, host: str = "node1", **more: Any) -> Path:
        root = tmp_path / "run"
        record = {
            "schema": tag("run"),
            "id": "made",
            "name": "made",
            "kind": "run",
            "created_utc": "2026-01-01T00:00:00Z",
        }
        rest = {"status": "completed", "command": [], "spec": {}, "launcher": "local", "ranks": ranks, "versions": {}}
        root.mkdir(exist_ok=True)
        (root / "run.json").write_text(json.dumps({**record, **rest}))
        extra = more.get("extra", lambda rank, number: {})
        for rank in range(ranks):
            records = [step(number, 5 * rank, **extra(rank, number)) for number in range(steps)]
            lines(root / layout.steps_file(rank), header(rank, ranks, host), *records)
            head = {"schema": tag("events"), "rank": rank, "host": host, "budget": 1 << 24}
            marks = [
                {"kind": "epoch", "epoch": number // 3, "step": number, "t_ns": 0} for number in range(0, steps, 3)
            ]
            end = {"kind": "end", "steps": steps, "t_ns": 9}
            lines(root / layout.events_file(rank), head, *marks, *more.get("events", ()), end)
        if "samples" in more:
            clock = {"monotonic_ns": 0, "realtime_ns": 0}
            head = {"schema": tag("counters"), "host": host, "clock": clock, "interval_ns": 10**9}
            lines(root / layout.counters_file(host), head, *more["samples"])
        return root

    return make


def drawn(root: Path, **window: Any) -> tuple[list[dict[str, Any]], timeline.Written]:
    path = root.parent / "out.json"
    written = timeline.write(AlignedRun(read_run(root)), path, **window)
    events = json.loads(path.read_text("ascii"))["traceEvents"]
    assert written.events == len(events)
    return events, written


def check_legal(events: list[dict[str, Any]]) -> None:
    """The rules of the format: ordered, nested or apart on every track, every track named, no time below 0."""
    named = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    processes = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        assert event["pid"] in processes
        if event["ph"] in "Xi":
            assert event["tid"] in named
            assert event["ts"] >= 0
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            tracks[event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    for intervals in tracks.values():
        assert intervals == sorted(intervals, key=lambda interval: interval[0])
        open_until: list[int] = []
        for begin, end in intervals:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert end >= begin
            assert not open_until or end <= open_until[-1], "two slices overlap on one track"
            open_until.append(end)


def slices(events: list[dict[str, Any]], rank: int, track: str) -> list[tuple[str, float, float]]:
    """Name, begin and end in ms of the slices of a track and those beside it."""
    tids = {
        event["tid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["args"]["name"].partition(" (")[0] == track
    }
    mine = [event for event in events if event["ph"] == "X" and event["pid"] == rank + 1 and event["tid"] in tids]
    return [(one["name"], round(one["ts"] / 1000, 6), round((one["ts"] + one["dur"]) / 1000, 6)) for one in mine]


def test_steps_hold_their_phases_and_reductions_stand_where_they_were(make_run: Callable[..., Path]) -> None:
    events, written = drawn(make_run())
    check_legal(events)
    assert (written.first, written.last, written.notes) == (0, STEPS - 1, ())
    assert slices(events, 0, "steps")[:8] == [
        ("step 0", 0, 100),
        ("input", 0, 5),
        ("forward", 5, 35),
        ("backward", 35, 75),
        ("wait", 75, 80),  # rank 1 comes 5 ms later
        ("transfer", 80, 85),
        ("optimizer", 95, 100),  # its return is the end of the step
        ("step 1", 100, 200),
    ]
    assert slices(events, 0, "reduction of gradients")[:2] == [("wait", 75, 80), ("transfer", 80, 85)]
    assert slices(events, 1, "reduction of gradients")[:1] == [("transfer", 80, 85)]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 · node1", "rank 1 · node1"]
    marks = [event["name"] for event in events if event["ph"] == "i" and event["name"].startswith("epoch")]
    assert marks == ["epoch 0", "epoch 1"] * 2
    phases = [event for event in events if event["ph"] == "X" and event["name"] == "forward"]
    assert all(event["args"] == {"placement": "schematic"} for event in phases)


def test_what_was_waited_in_forward_stands_in_forward(make_run: Callable[..., Path]) -> None:
    """Rank 1 is 20 ms late for a broadcast of buffers, inside forward."""
    kind = {"kind": "collective_kind", "id": 0, "op": "broadcast", "size_bytes": 8, "group": "0", "group_ranks": 2}

    def calls(rank: int, number: int) -> dict[str, Any]:
        begin = BASE_NS + number * STEP_NS + (10 + 20 * rank) * MS
        blocked = (22 - 20 * rank) * MS
        call = [0, number, begin, blocked, begin + blocked]
        return {"collectives": [call], "collective_ns": blocked, "forward_ns": 15 * MS, "arrival_ns": None}

    made = make_run(extra=calls, events=[{**kind, "root": 0, "inside": "forward", "t_ns": 0}])
    events, _ = drawn(made)
    check_legal(events)
    assert slices(events, 0, "steps")[:8] == [
        ("step 0", 0, 100),
        ("input", 0, 5),
        ("forward", 8, 10),
        ("wait", 10, 30),
        ("transfer", 30, 32),
        ("forward", 32, 45),
        ("backward", 45, 95),
        ("optimizer", 95, 100),
    ]


def test_an_evaluation_stands_where_it_was(make_run: Callable[..., Path]) -> None:
    span = {"kind": "span", "name": "evaluation", "step": 1, "epoch": 0}
    span |= {"begin_ns": BASE_NS + 110 * MS, "end_ns": BASE_NS + 112 * MS}
    events, _ = drawn(make_run(events=[span], extra=lambda rank, number: {"evaluation_ns": 2 * MS * (number == 1)}))
    check_legal(events)
    assert [one for one in slices(events, 0, "steps") if one[0] == "evaluation"] == [("evaluation", 110, 112)]


moment = st.integers(-10, 110)
part = st.sampled_from(("wait", "transfer", "blocked", "evaluation"))


@given(
    lengths=st.dictionaries(st.sampled_from(PARTS), st.integers(0, 60)),
    exact=st.lists(st.tuples(part, moment, moment), max_size=4),
    arrival=st.none() | moment,
)
def test_pieces_of_a_step_never_overlap_and_are_as_long_as_measured(
    lengths: dict[str, int], exact: list[tuple[str, int, int]], arrival: int | None
) -> None:
    pieces = place_parts(0, 100, lengths, exact, arrival)
    moments = [at for (_, begin, end), _ in pieces for at in (begin, end)]
    assert moments == sorted(moments)
    assert all(0 <= at <= 100 for at in moments)
    drawn_ns: dict[str, int] = defaultdict(int)
    for (name, begin, end), is_exact in pieces:
        assert end > begin
        drawn_ns[name] += end - begin
        assert not is_exact or any(one[0] == name and one[1] <= begin and end <= one[2] for one in exact)
    known = {name for name, *_ in exact}
    others = {name: length for name, length in lengths.items() if name not in known}
    assert all(drawn_ns[name] <= length for name, length in others.items())
    if sum(others.values()) + sum(drawn_ns[name] for name in known) <= 100:
        assert all(drawn_ns[name] == length for name, length in others.items())


def test_a_window_of_a_long_run_has_its_steps_alone(make_run: Callable[..., Path]) -> None:
    root = make_run(
        events=[
            {"kind": "span", "name": "evaluation", "begin_ns": BASE_NS, "end_ns": BASE_NS + 5, "step": 0, "epoch": 0}
        ]
    )
    events, written = drawn(root, first=2, end=4)
    check_legal(events)
    assert (written.first, written.last) == (2, 3)
    assert [name for name, *_ in slices(events, 1, "steps") if name.startswith("step")] == ["step 2", "step 3"]
    assert slices(events, 0, "between steps") == []
    with pytest.raises(BadInput, match="nothing to draw") as caught:
        drawn(root, first=STEPS)
    assert caught.value.hint == f"steps 0 to {STEPS - 1} were recorded"


def test_overlapping_collectives_get_tracks_of_their_own(make_run: Callable[..., Path]) -> None:
    """Two in flight at once, one never waited for; and what was waited in the second one."""
    kind = {
        "kind": "collective_kind",
        "id": 0,
        "op": "all_reduce",
        "size_bytes": 8,
        "group": "0",
        "group_ranks": 2,
        "t_ns": 0,
    }

    def calls(rank: int, number: int) -> dict[str, Any]:
        at = BASE_NS + number * STEP_NS + rank * 2 * MS
        first = [0, 3 * number, at, 6 * MS, BASE_NS + number * STEP_NS + 40 * MS]
        second = [0, 3 * number + 1, at + MS, (20 - 3 * rank) * MS, at + 21 * MS - 2 * rank * MS]
        return {"collectives": [first, second, [0, 3 * number + 2, at, None, None]], "collective_ns": 26 * MS}

    events, _ = drawn(make_run(extra=calls, events=[kind]))
    check_legal(events)
    titles = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert titles == {"steps", "reduction of gradients", "collectives", "collectives (2)"}
    of_rank = slices(events, 0, "collectives")[:6]
    assert of_rank[:2] == [("all_reduce", 0, 40), ("transfer", 34, 40)]
    assert ("all_reduce", 1, 21) in slices(events, 0, "collectives")
    assert ("wait", 1, 3) in slices(events, 0, "collectives")
    assert sum(event["name"] == "all_reduce, never waited for" for event in events) == 2 * STEPS


def test_pauses_and_counters(make_run: Callable[..., Path]) -> None:
    spans = [
        {"kind": "span", "name": name, "begin_ns": BASE_NS + begin, "end_ns": BASE_NS + end, "step": 1, "epoch": 0}
        for name, begin, end in (("evaluation", 0, 50), ("checkpoint", 30, 90), ("checkpoint", 90, 95))
    ]
    ranks = {"0": {"processes": 1, "cpu_ns": 0, "read_bytes": 0}}
    later = {"0": {"processes": 1, "cpu_ns": 3 * STEP_NS, "read_bytes": 20 * 10**6}}
    samples = [{"t_ns": BASE_NS + MS, "ranks": ranks}, {"t_ns": BASE_NS + MS + 2 * STEP_NS, "ranks": later}]
    events, _ = drawn(make_run(events=spans, samples=samples))
    check_legal(events)
    assert slices(events, 0, "between steps") == [
        ("evaluation", 0, 50e-6),
        ("checkpoint", 30e-6, 90e-6),
        ("checkpoint", 90e-6, 95e-6),
    ]
    counts = {event["name"]: (event["ts"], event["args"]["value"]) for event in events if event["ph"] == "C"}
    assert counts == {"CPUs in use": (1000, 1.5), "read MB/s": (1000, 100)}


def test_interfaces_and_accelerators_stand_with_their_host(make_run: Callable[..., Path]) -> None:
    """Also in a window between two samples; an interface that carried nothing is left out."""
    gpu = {"busy_share": 0.5, "power_w": 250, "memory_used_bytes": 4 * 10**9}
    samples = [
        {
            "t_ns": BASE_NS + at * MS,
            "ranks": {},
            "gpus": {"0": gpu},
            "nics": {
                "eth0": {"received_bytes": (400 + at) * 1000, "sent_bytes": (400 + at) * 2000},
                "lo": {"received_bytes": 7, "sent_bytes": 7},
            },
        }
        for at in (-400, -100, 900, 1900)
    ]
    events, _ = drawn(make_run(samples=samples), first=2, end=3)
    check_legal(events)
    counts = [event for event in events if event["ph"] == "C"]
    assert {event["pid"] for event in counts} == {3}
    assert {(event["name"], event["ts"], event["args"]["value"]) for event in counts if event["ts"] == 0} == {
        ("eth0 received MB/s", 0, 1),
        ("eth0 sent MB/s", 0, 2),
        ("accelerator 0 busy %", 0, 50),
        ("accelerator 0 power W", 0, 250),
        ("accelerator 0 memory GB", 0, 4),
    }


def test_a_run_too_long_to_open_is_cut_and_says_so(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 2 * timeline.EVENTS_PER_STEP * 2)
    events, written = drawn(make_run(), first=1)
    check_legal(events)
    assert (written.first, written.last) == (1, 2)
    assert written.notes == ("3 later steps were left out so that the file can be opened: choose others with --steps",)
    assert sum(event["ph"] != "M" for event in events) < timeline.MAX_EVENTS


def test_of_a_large_run_a_window_of_steady_steps_is_drawn_by_default(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "QUICK_EVENTS", 2 * timeline.EVENTS_PER_STEP * 2)
    root = make_run()
    steady = AlignedRun(read_run(root)).steady
    events, written = drawn(root)
    check_legal(events)
    assert written.first == steady.steps[steady.used][0]
    assert written.last == written.first + 1
    note = "a window of 2 steps; 4 others were left out so that the file opens quickly: "
    assert written.notes[0] == note + "choose steps with --steps FIRST:LAST"
    assert not drawn(root, first=0, end=99)[1].notes


def test_clocks_that_do_not_compare_are_said_and_nothing_is_called_wait(make_run: Callable[..., Path]) -> None:
    root = make_run()
    path = root / layout.steps_file(1)
    path.write_text(path.read_text().replace('"boot_id": "b"', '"boot_id": "another"'))
    events, written = drawn(root)
    check_legal(events)
    assert written.notes == ("the clocks of the hosts are not aligned: ranks do not line up",)
    assert slices(events, 0, "reduction of gradients")[0] == ("blocked", 75, 85)
    assert not [event for event in events if event["name"] in ("wait", "transfer")]


def test_hostile_names_are_text(make_run: Callable[..., Path]) -> None:
    span = {"kind": "span", "name": HOSTILE, "begin_ns": BASE_NS, "end_ns": BASE_NS + 5, "step": 1, "epoch": 0}
    kind = {
        "kind": "collective_kind",
        "id": 0,
        "op": HOSTILE,
        "size_bytes": 8,
        "group": HOSTILE,
        "group_ranks": 2,
        "t_ns": 0,
    }
    calls = {"collectives": [[0, 0, BASE_NS, 1, BASE_NS + 1]]}
    events, _ = drawn(make_run(events=[span, kind], extra=lambda rank, number: calls if number == 0 else {}))
    check_legal(events)
    assert max(len(event["name"]) for event in events) <= 100
    assert not any(char < " " for event in events for char in event["name"])


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_run()
    path = root.parent / "out.json"
    path.write_text("old")

    def breaks(*_: Any) -> Any:
        yield "{}"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(timeline, "_events", breaks)
    with pytest.raises(BadInput, match="No space left"):
        timeline.write(AlignedRun(read_run(root)), path)
    assert path.read_text() == "old"
    assert sorted(one.name for one in root.parent.iterdir()) == ["out.json", "run"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40))
def test_lanes_keep_apart_what_overlaps_and_are_no_more_than_overlap(times: list[tuple[int, int]]) -> None:
    intervals = sorted((begin, begin + length) for begin, length in times)
    by_lane: dict[int, int] = {}
    for (begin, end), lane in zip(intervals, lanes(intervals), strict=True):
        assert by_lane.get(lane, begin) <= begin
        by_lane[lane] = end
    most = max((sum(b <= at < max(e, b + 1) for b, e in intervals) for at, _ in intervals), default=0)
    assert len(by_lane) <= most


number = st.none() | st.integers(0, 200 * MS)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_was_recorded_the_timeline_is_legal(make_run: Callable[..., Path], data: st.DataObject) -> None:
    kinds = [
        {
            "kind": "collective_kind",
            "id": place,
            "op": op,
            "size_bytes": 8,
            "group": "0",
            "group_ranks": 2,
            "root": 0,
            "t_ns": 0,
        }
        for place, op in enumerate(("all_reduce", "broadcast"))
    ]
    moments = st.integers(-50 * MS, 900 * MS).map(lambda at: BASE_NS + at)
    span = st.tuples(moments, moments).map(sorted).map(lambda pair: {"begin_ns": pair[0], "end_ns": pair[1]})
    spans = [
        {"kind": "span", "name": "evaluation", "step": data.draw(st.integers(0, STEPS)), "epoch": 0, **times}
        for times in data.draw(st.lists(span, max_size=4))
    ]

    def extra(rank: int, at: int) -> dict[str, Any]:
        call = st.tuples(st.integers(0, 2), st.none() | st.integers(0, 9), moments, st.integers(0, 300 * MS))
        calls = [
            [kind, seq, begin, *((length, begin + length) if data.draw(st.booleans()) else (None, None))]
            for kind, seq, begin, length in data.draw(st.lists(call, max_size=3))
        ]
        begin = BASE_NS + at * STEP_NS
        chosen = {name: data.draw(number) for name in ("forward_ns", "backward_ns", "evaluation_ns", "collective_ns")}
        arrival, done = (data.draw(st.none() | moments) for _ in range(2))
        end = begin + data.draw(st.integers(0, 300 * MS))
        return {"end_ns": end, **chosen, "arrival_ns": arrival, "done_ns": done, "collectives": calls}

    events, _ = drawn(make_run(extra=extra, events=[*kinds, *spans]))
    check_legal(events)


@pytest.mark.slow
def test_the_command_writes_it_beside_what_it_shows(
    make_run: Callable[..., Path], run_here: Callable[..., Any], tmp_path: Path
) -> None:
    root, path = make_run(), tmp_path / "t.json"
    other = shutil.copytree(root, tmp_path / "other")
    done = run_here("show", str(root), "--perfetto", str(path), "--steps", "1:3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["observed"]["steps"] == STEPS
    assert "events of steps 1 to 2; open it at https://ui.perfetto.dev" in done.stderr
    check_legal(json.loads(path.read_text())["traceEvents"])
    for arguments, says in (
        (("--steps", "1:3"), "--steps chooses what --perfetto draws"),
        (("--perfetto", str(path), "--steps", "3:1"), "--steps '3:1' cannot be read"),
        (("--perfetto", str(path), "--steps", "x"), "--steps 'x' cannot be read"),
        (("--perfetto", str(path), str(other)), "--perfetto draws one run, not 2"),
    ):
        refused = run_here("show", str(root), *arguments)
        assert refused.returncode == 2
        assert says in refused.stderr
