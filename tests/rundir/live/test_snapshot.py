"""One look at the files of a job that runs: what is blocked, who lives, and whose steps are recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.live.snapshot import FRESH_S, job_snapshot
from allpull.rundir.run_record import read_record
from allpull.schema.base import tag

S = 10**9
MS = 10**6


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


pytestmark = pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="needs Linux's /proc")


def make(root: Path, pid: int, *events: dict[str, Any], boot: str | None = None, first_step: int = 0) -> Path:
    """A run of one rank, process ``pid``, that has recorded one step."""
    for folder in ("steps", "events"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    record = {"schema": tag("run"), "id": "r", "name": "r", "kind": "run", "created_utc": "2026-11-20T12:00:00Z"}
    rest = {"status": "running", "command": [], "launcher": "command", "ranks": 1, "versions": {}}
    (root / layout.RUN_JSON).write_text(json.dumps({**record, **rest, "spec": {"watch": {"first_step": first_step}}}))
    who = {"schema": tag("steps"), "rank": 0, "ranks": 1, "host": "n", "pid": pid, "boot_id": boot or boot_id()}
    step = {"step": 0, "epoch": 0, "begin_ns": 0, "end_ns": 100 * MS, "backward_ns": 60 * MS, "forward_ns": 20 * MS}
    step |= {"arrival_ns": 40 * MS, "done_ns": 75 * MS, "collective_ns": 5 * MS, "samples": 8}
    for name, lines in ((layout.steps_file(0), (who, step)), (layout.events_file(0), ({"schema": "e"}, *events))):
        (root / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def age(root: Path, seconds: float) -> None:
    path = root / layout.steps_file(0)
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_what_ddp_waited_for_in_backward_is_blocked_and_not_backward(tmp_path: Path) -> None:
    (step,) = job_snapshot(make(tmp_path, os.getpid())).ranks[0].steps
    assert step.phases_ns == {"forward": 20 * MS, "backward": 25 * MS, "collective": 40 * MS}
    assert step.blocked_ns == 40 * MS


def test_all_reductions_of_a_step_count(tmp_path: Path) -> None:
    """Two networks in the first pass, blocked from 20 to 30 ms; the second pass from 40 to 75 ms."""
    root = make(tmp_path, os.getpid())
    path = root / layout.steps_file(0)
    header, line = path.read_text().splitlines()
    passes = [[0, 5, 30, *[0] * 5, 10], [1, 5, 30, *[0] * 5, 20], [0, 35, 75, *[0] * 5, 36, 40]]
    listed = [[one[0], *(MS * number for number in one[1:])] for one in passes]
    for value, blocked_ms in ((listed, 45), ("nonsense", 35), ([[1]], 35), ([[None] * 9], 35)):
        path.write_text(header + "\n" + json.dumps({**json.loads(line), "reductions": value}) + "\n")
        (step,) = job_snapshot(root).ranks[0].steps
        assert step.blocked_ns == (blocked_ms + 5) * MS


def test_a_process_that_is_gone_is_dead_once_its_records_are_old(tmp_path: Path) -> None:
    """In a container it has another number there: then it goes on writing."""
    root = make(tmp_path, gone())
    assert job_snapshot(root).ranks[0].alive is None
    age(root, 2 * FRESH_S)
    assert job_snapshot(root).ranks[0].alive is False
    assert job_snapshot(make(tmp_path, os.getpid())).ranks[0].alive is True
    assert job_snapshot(make(tmp_path, gone(), boot="another machine")).ranks[0].alive is None


def test_whose_steps_are_recorded_now_is_known_from_the_last_switch(tmp_path: Path) -> None:
    on, off = ({"kind": "watching", "on": on, "step": 1, "t_ns": 1} for on in (True, False))
    seen = [job_snapshot(make(tmp_path, 1, *events)).ranks[0].is_observed for events in ((), (off,), (off, on))]
    assert seen == [True, False, True]
    later = [
        job_snapshot(make(tmp_path, 1, *events, first_step=9)).ranks[0].is_observed for events in ((), (on,), (on, off))
    ]
    assert later == [False, True, False]


def test_ends_and_nonsense(tmp_path: Path) -> None:
    root = make(tmp_path, os.getpid(), {"kind": "end", "steps": 1, "t_ns": 1})
    assert job_snapshot(root).ranks[0].ended
    with (root / layout.steps_file(0)).open("a") as file:
        file.write("[" * 10**4 + '\nnot json\n[1]\n{"step": true}\n{"step": 2, "begin_ns": 1')
    assert len(job_snapshot(root).ranks[0].steps) == 1
    (root / layout.steps_file(0)).write_text("null\n")
    assert job_snapshot(root).ranks == ()
    assert read_record(root).id == "r"
    with pytest.raises(RunDirError):
        read_record(root / "steps")
