"""What `allpull watch` says of ranks that are slow, hung or dead, on jobs made up and on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from allpull.analyse.job_health import assess
from allpull.observe.hook_install import install_hook, variables
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.live.snapshot import Activity, JobSnapshot, RankSnapshot, StepSnapshot, job_snapshot
from allpull.schema.base import tag
from allpull.schema.run import RunRecord

S = 1_000_000_000
RECORD = RunRecord.model_validate(
    {
        "schema": tag("run"),
        "id": "r",
        "name": "r",
        "kind": "run",
        "created_utc": "2026-11-20T12:00:00Z",
        "status": "running",
        "command": ["train.py"],
        "spec": {},
        "launcher": "local",
        "ranks": 3,
        "versions": {},
    }
)
FORWARD = Activity(step=20, phase="forward", since_ns=80 * S, operation=None, is_waiting=False)
WAITING = Activity(step=20, phase="backward", since_ns=85 * S, operation=None, is_waiting=True)


def steps(own_ms: float, wall_ms: float = 100) -> tuple[StepSnapshot, ...]:
    wall, blocked = round(wall_ms * 1e6), round((wall_ms - own_ms) * 1e6)
    return tuple(
        StepSnapshot(
            step=number,
            epoch=0,
            begin_ns=number * wall,
            end_ns=(number + 1) * wall,
            samples=8,
            phases_ns={"forward": round(own_ms * 1e6), "collective": blocked},
            blocked_ns=blocked,
            is_tagged=False,
        )
        for number in range(20)
    )


def rank(number: int, **changes: object) -> RankSnapshot:
    usual: dict[str, object] = {
        "rank": number, "host": "node1", "pid": 100 + number, "alive": True, "ended": False, "steps": steps(60),
        "activity": FORWARD, "idle_s": 0.1, "now_ns": 100 * S,
    }  # fmt: skip
    return RankSnapshot(**{**usual, **changes})  # type: ignore[arg-type]


def troubles(*ranks: RankSnapshot) -> list[tuple[str, int]]:
    return [(one.kind, one.rank) for one in assess(JobSnapshot(record=RECORD, ranks=ranks, metrics={})).troubles]


def test_a_healthy_job_has_no_trouble_and_right_numbers():
    job = JobSnapshot(record=RECORD, ranks=(rank(0), rank(1), rank(2)), metrics={})
    result = assess(job)
    assert result.troubles == []
    assert result.steps_done == 20
    assert result.step_s == pytest.approx(0.1)
    assert result.samples_per_s == pytest.approx(3 * 8 / 0.1)
    assert result.phases == {"forward": pytest.approx(0.06), "collective": pytest.approx(0.04)}


def test_a_killed_job_has_no_time_left():
    record = RECORD.model_copy(update={"kind": "train", "spec": {"train": {"epochs": 3}}})
    job = JobSnapshot(record=record, ranks=(rank(0), rank(1)), metrics={"steps_per_epoch": 40})
    assert assess(job).left_s == pytest.approx(100 * 0.1)
    assert assess(replace(job, is_over=True)).left_s is None


def test_phases_sum_to_the_steady_step_however_long_an_odd_one_was():
    odd = replace(steps(100)[0], end_ns=10**12, phases_ns={"forward": 10**12}, is_tagged=True)
    plain = tuple(replace(step, phases_ns={"forward": 40 * 10**6}) for step in steps(60))
    result = assess(JobSnapshot(record=RECORD, ranks=(rank(0, steps=(odd, *plain)),), metrics={}))
    assert result.phases == {"forward": pytest.approx(0.04), "other": pytest.approx(0.06)}


def test_steps_that_are_not_yet_written_count_as_done():
    job = JobSnapshot(
        record=RECORD, ranks=(rank(0, activity=replace(FORWARD, step=31)), rank(1, activity=None)), metrics={}
    )
    assert (assess(job).steps_done, [one.steps_done for one in assess(job).ranks]) == (20, [31, 20])


def test_the_rank_whose_own_work_is_longer_is_slow():
    assert troubles(rank(0), rank(1, steps=steps(95)), rank(2)) == [("slow", 1)]


def test_a_small_difference_is_chance():
    assert troubles(rank(0), rank(1, steps=steps(65)), rank(2)) == []


def test_the_rank_that_others_wait_for_hangs():
    still = {"idle_s": 30.0}
    found = troubles(rank(0, activity=WAITING, **still), rank(1, **still), rank(2, activity=WAITING, **still))
    assert found == [("hung", 1)]


def test_a_long_step_is_no_hang():
    slow = {"steps": steps(900, 1000), "idle_s": 8.0}
    assert troubles(rank(0, activity=WAITING, **slow), rank(1, **slow)) == []


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint"])
def test_a_rank_that_evaluates_or_saves_hangs_only_when_that_takes_minutes(phase):
    doing = replace(FORWARD, phase=phase)
    for still_s, found in ((30.0, []), (400.0, [("hung", 1)])):
        still = {"idle_s": still_s, "now_ns": FORWARD.since_ns + round(still_s * S)}
        assert troubles(rank(0, activity=WAITING, **still), rank(1, activity=doing, **still)) == found


def test_a_first_step_may_compile_but_not_keep_others_waiting():
    still = {"idle_s": 30.0, "steps": ()}
    assert troubles(rank(0, **still), rank(1, **still)) == []
    assert troubles(rank(0, activity=WAITING, **still), rank(1, **still)) == [("hung", 1)]
    long = {"idle_s": 90.0, "steps": (), "now_ns": FORWARD.since_ns + 90 * S}
    assert troubles(rank(0, **long), rank(1, **long)) == [("hung", 0), ("hung", 1)]


def test_a_rank_whose_steps_nobody_asked_for_is_in_no_trouble():
    still = {"idle_s": 30.0, "is_observed": False}
    job = JobSnapshot(record=RECORD, ranks=(rank(0, **still), rank(1, activity=WAITING, **still)), metrics={})
    result = assess(job)
    assert result.troubles == []
    assert {one.phase for one in result.ranks} == {"not observed now"}


def test_a_rank_that_changes_its_phase_does_not_stand_still():
    moves = {"idle_s": 30.0, "now_ns": FORWARD.since_ns + S}
    assert troubles(rank(0, activity=WAITING, idle_s=30.0), rank(1, **moves)) == []


def test_one_other_waits_and_two_others_wait():
    still = {"idle_s": 30.0}
    for others, says in (
        (1, "; 1 other waits in the all_reduce of their"),
        (2, "; 2 others wait in the all_reduce of"),
    ):
        ranks = (rank(0, **still), *(rank(1 + at, activity=WAITING, **still) for at in range(others)))
        (found,) = assess(JobSnapshot(record=RECORD, ranks=ranks, metrics={})).troubles
        assert says in found.words


def test_a_dead_rank_is_dead_and_not_those_that_wait_for_it():
    still = {"idle_s": 30.0, "activity": WAITING}
    assert troubles(rank(0, **still), rank(1, alive=False, idle_s=30.0), rank(2, **still)) == [("dead", 1)]


def test_a_rank_that_ended_is_no_trouble():
    assert troubles(rank(0, ended=True, alive=False), rank(1, ended=True, alive=False)) == []


HANGING = """
import os, time, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def lost():
    open("hanging", "w").close()
    time.sleep(600)

for step in range(10**6):
    if step == 30 and dist.get_rank() == 1:
        lost()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_a_real_rank_that_hangs_is_named_while_it_does(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for folder in layout.FOLDERS:
        (directory / folder).mkdir(parents=True)
    (directory / layout.RUN_JSON).write_text(RECORD.model_dump_json(by_alias=True))
    job = directory / layout.SPEC
    JobFile(directory=str(directory), budget=1 << 24).write(str(job))
    install_hook(str(directory))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HANGING))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment |= variables(str(directory), str(job), environment)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    running = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 180
        while not (tmp_path / "hanging").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        found = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.5)
            found = assess(job_snapshot(directory)).troubles
        assert [(one.kind, one.rank) for one in found] == [("hung", 1)]
        assert "1 other waits in the all_reduce of their gradients" in found[0].words
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=60)
