"""What observed programs leave beside their steps, such as windows, pings and accelerators, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import counters
from allpull.rundir.read.run import read_run
from allpull.schema.base import VERSION, tag
from allpull.schema.gap import texts

MakeRun = Callable[..., Path]
PING = [1, 12, 13, 5, 1_700_000_000_000_000_001, 1_700_000_000_000_000_012, 1_700_000_000_000_000_013, 0]


def add(path: Path, *values: dict[str, Any], before_last: bool = False) -> None:
    lines = path.read_text().splitlines()
    made = [json.dumps(value) for value in values]
    lines[len(lines) - before_last : len(lines) - before_last] = made
    path.write_text("\n".join(lines) + "\n")


def test_events_of_observed_programs_come_back_by_kind(make_run: MakeRun) -> None:
    root = make_run()
    kind = {
        "kind": "collective_kind",
        "id": 0,
        "op": "barrier",
        "size_bytes": 0,
        "group": "0",
        "group_ranks": 2,
        "t_ns": 1,
    }
    window = {"kind": "trace", "file": "traces/x.json.gz", "first_step": 5, "steps": 3, "begin_ns": 1, "end_ns": 2}
    add(
        root / layout.events_file(1),
        kind,
        window,
        {"kind": "buckets", "step": 4, "sizes_bytes": [4, 8], "t_ns": 1},
        {"kind": "device_step", "step": 3, "busy_ns": 7, "t_ns": 1},
        {"kind": "watching", "on": False, "step": 8, "t_ns": 1},
    )
    log = read_run(root).events[1]
    assert [(one.id, one.op, one.root, one.inside) for one in log.collective_kinds] == [(0, "barrier", None, None)]
    assert log.buckets[0].sizes_bytes == [4, 8]
    assert (log.traces[0].file, log.device_steps[0].busy_ns, log.watching[0].on) == ("traces/x.json.gz", 7, False)


def test_pings_accelerators_and_interfaces_are_tables(make_run: MakeRun) -> None:
    root = make_run()
    add(
        root / layout.counters_file("here"),
        {"t_ns": 3, "against": "there", "pings": [PING, [2, *PING[1:]]]},
        {"t_ns": 4, "gpus": {"0": {"busy_share": 0.5, "energy_j": 7, "clock_hz": 10**9}}},
        {"t_ns": 5, "nics": {"eth0": {"received_bytes": 1, "sent_bytes": 2}}},
    )
    run = read_run(root)
    assert dict(run.pings.schema) == counters.PINGS_SCHEMA
    assert run.pings.rows() == [("here", "there", *PING), ("here", "there", 2, *PING[1:])]
    assert dict(run.gpus.schema) == counters.GPUS_SCHEMA
    assert run.gpus.rows() == [("here", 4, "0", 0.5, None, 10**9, None, 7.0, None)]
    assert run.nics.rows() == [("here", 5, "eth0", 1, 2)]
    assert run.counters.height == 4
    assert run.gaps == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pings": [PING]}, "pings against no host"),
        ({"against": "there", "pings": [PING[:7]]}, "pings.0: List should have at least 8 items"),
        ({"against": "there", "pings": [[5, 12, 13, 1, *PING[4:]]]}, "back before it was sent"),
        ({"against": "there", "pings": [[1, 13, 12, 5, *PING[4:]]]}, "answered before it was received"),
        ({"against": "there", "pings": [[1, 12, 13, 2**62 + 1, *PING[4:]]]}, "a moment beyond"),
        ({"against": "there", "pings": [PING] * 100_001}, "100,001 pings in one sample"),
        ({"against": 5, "pings": [PING]}, "against: Input should be a valid string"),
        ({"gpus": {"0": {"busy_share": 2}}}, "gpus.0.busy_share: Input should be less than or equal to 1"),
        ({"gpus": {"0": {"power_w": "hot"}}}, "gpus.0.power_w: Input should be a valid number"),
        ({"nics": {"eth0": {"sent_bytes": 1}}}, "received_bytes: Field required"),
    ],
)
def test_odd_samples_are_damage(make_run: MakeRun, fields: dict[str, Any], says: str) -> None:
    root = make_run()
    add(root / layout.counters_file("here"), {"t_ns": 3, **fields})
    with pytest.raises(RunDirError, match=rf"counters/here\.jsonl, line 4: .*{says}") as caught:
        read_run(root)
    assert len(caught.value.message) < 500
    run = read_run(root, skip_damaged=True)
    assert run.pings.is_empty()
    assert "counters: 1 damaged sample left out" in texts(run.gaps)


def test_a_part_of_observation_that_stopped_is_named_with_its_ranks(make_run: MakeRun) -> None:
    root = make_run(ranks=2)
    off = {"kind": "switched_off", "reason": "AttributeError: no wait", "part": "collectives", "t_ns": 4}
    for rank in (0, 1):
        add(root / layout.events_file(rank), off, before_last=True)
    assert texts(read_run(root).gaps) == [
        "ranks 0, 1: collectives could not be observed to the end: AttributeError: no wait"
    ]


def test_steps_that_the_user_did_not_want_to_see_are_not_lost(make_run: MakeRun) -> None:
    root = make_run(ranks=1)
    path = root / layout.steps_file(0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], *lines[7:]]) + "\n")  # steps 3, 4 and 5
    switches = [
        {"kind": "watching", "on": on, "step": at, "t_ns": at} for on, at in ((False, 3), (True, 6), (False, 9))
    ]
    add(root / layout.events_file(0), *switches, before_last=True)
    assert texts(read_run(root).gaps) == ["rank 0: observation was switched off for 3 steps"]
    path.write_text("\n".join([*lines[:4], *lines[7:9], *lines[10:]]) + "\n")  # and step 8
    assert texts(read_run(root).gaps) == [
        "rank 0: observation was switched off for 3 steps",
        "rank 0: 1 step between first and last without a record",
    ]


def test_ranks_of_a_command_are_those_that_recorded(make_run: MakeRun) -> None:
    root = make_run(ranks=3, kind="run", launcher="command")
    record = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**record, "ranks": 1, "status": "running"}))
    run = read_run(root)
    assert run.record.ranks == 3
    assert run.steps["rank"].n_unique() == 3
    assert sorted(run.events) == [0, 1, 2]
    assert "run.json says 1 rank, the records 3: read as 3" in texts(run.gaps)
    (root / "run.json").write_text(json.dumps({**record, "ranks": 1, "kind": "train", "launcher": "local"}))
    (root / layout.counters_file("here")).unlink()
    assert "steps: 2 files of no rank of this run (it has 1): not read" in texts(read_run(root).gaps)


def test_a_command_without_ranks_says_why(make_run: MakeRun) -> None:
    root = make_run(ranks=1, kind="run", launcher="command")
    (root / layout.steps_file(0)).unlink()
    (root / layout.events_file(0)).unlink()
    assert read_run(root).gaps[0].text.startswith("no process that imports torch was seen: did Python start with -I")
    record = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**record, "exit": {"code": 3}}))
    assert read_run(root).gaps[0].text.endswith("before the job failed: the job ended with code 3")  # no flag of Python
    (root / "run.json").write_text(json.dumps({**record, "exit": {"code": 130}}))
    assert read_run(root).gaps[0].text.startswith("no process had begun to train when the job ended: ")
    for pid in (7, 8, 9):
        path = root / layout.process_file("here", pid)
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"pid": pid, "host": "here", "rank": None, "argv": ["tool.py"]}
        path.write_text(json.dumps({**told, "reason": "it imported torch and did not train"} if pid < 9 else told))
    (root / layout.process_file("here", 10)).write_text("garbage")
    assert read_run(root).gaps[0].text == (
        "processes that imported torch: 3, of which none trained: "
        "it imported torch and did not train (2 times); no reason given"
    )


def test_runs_of_the_first_version_read_as_before(repository: Path) -> None:
    run = read_run(repository / "tests/runs/v1.0")
    assert run.record.schema_ == "allpull.run/1.0"
    assert run.steps.height > 0
    assert run.collectives.is_empty()
    assert run.pings.is_empty()
    assert run.steps["collective_ns"].null_count() == run.steps.height
    assert all(not log.collective_kinds for log in run.events.values())


@pytest.fixture
def repository() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[3]


def test_events_of_one_newer_minor_version_are_passed_over(make_run: MakeRun) -> None:
    path = make_run() / layout.events_file(0)
    lines = path.read_text().splitlines()
    newer = json.dumps({**json.loads(lines[0]), "schema": tag("events").replace(VERSION, "1.9")})
    path.write_text("\n".join([newer, json.dumps({"kind": "aurora", "t_ns": 3}), *lines[1:]]) + "\n")
    assert len(read_run(path.parents[1]).events[0].metrics) == 1


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("ready_ns", [3, 2], r"ready_ns\[1\] is 2, before that of the bucket before"),
        ("reductions", [[0, 1, 2, 0, 0, 0, 0, -1, 2]], r"reductions\[0\] has optimizer_ns -1"),
    ],
)
def test_buckets_of_a_device_that_cannot_be(make_run: MakeRun, field: str, value: Any, fault: str) -> None:
    root = make_run()
    add(root / layout.events_file(1), {"kind": "device_step", "step": 3, field: value, "t_ns": 1})
    with pytest.raises(RunDirError, match=fault):
        read_run(root)
