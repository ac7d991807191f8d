"""A Slurm run whose launcher is gone is closed all the same: by its own script, or later by asking Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allpull.errors import BadInput
from allpull.jobs.training import training_script
from allpull.launch import host_endings
from allpull.launch.job import Job, prepare
from allpull.launch.slurm import close_run
from allpull.launch.slurm.launcher import prepare_script
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.read.run import read_run
from allpull.rundir.run_record import write_record
from allpull.schema.spec import LaunchSpec, RunSpec, SlurmSpec

RUNNING = "JobId=7 JobName=x\n   JobState=RUNNING Reason=None Dependency=(null)\n   NodeList=n[9-10]\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of two hosts that has begun, and whose launcher wrote its number before it was killed."""
    monkeypatch.setattr(host_endings, "SETTLE_S", 0.5)
    spec = RunSpec(
        launch=LaunchSpec(launcher="slurm", ranks=2, hosts=2),
        slurm=SlurmSpec(prologue=("export HUB_TOKEN=abcdefgh1234",)),
    )
    made = prepare(spec, kind="train", module="m", command=["m"], out=tmp_path / "runs")
    record = made.record.model_copy(update={"status": "running", "job": "7"})
    write_record(made.directory, record)
    prepare_script(made)
    for host in ("n9", "n10"):
        (made.directory / layout.host_file(host)).write_text("{}")
    return replace(made, record=record)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that says what `scontrol show job` prints; empty: Slurm does not answer."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(text: str) -> None:
        body = f"cat <<'E'\n{text}E" if text else "exit 1"
        (folder / "scontrol").write_text(f"#!/bin/sh\n{body}\n")
        (folder / "scontrol").chmod(0o755)

    return put


def ended(job: Job, *codes: int, **more: Any) -> None:
    """Hosts n9 and n10, which are the first and the second of the job, say with which codes they ended."""
    for index, (host, code) in enumerate(zip(("n9", "n10"), codes, strict=False)):
        told = {"host": host, "index": index, "code": code, "failures": [], **more}
        (job.directory / layout.ended_file(host)).write_text(json.dumps(told))


def read(job: Job) -> dict[str, Any]:
    return json.loads((job.directory / layout.RUN_JSON).read_text())


def test_a_script_that_ends_closes_the_run_and_takes_the_secrets_out(job):
    ended(job, 0, 0, versions={"python": "3.99.1", "torch": "9"})
    assert JobFile.read(str(job.file)).nonce
    assert "abcdefgh1234" in (job.directory / layout.SCRIPT).read_text()  # else it could not run
    command = [sys.executable, "-m", "allpull.launch.slurm.close_run", str(job.directory), "0"]
    assert subprocess.run(command, check=False).returncode == 0
    closed = read(job)
    assert (closed["status"], closed["exit"]["code"], closed["job"]) == ("completed", 0, "7")
    assert closed["hosts"] == ["n9", "n10"]  # by the number of the host, and not by name
    assert closed["ended_utc"] is not None
    assert (closed["versions"]["python"], closed["versions"]["torch"]) == ("3.99.1", "9")
    assert not JobFile.read(str(job.file)).nonce
    assert not (job.directory / layout.SECRETS).exists()
    assert "abcdefgh1234" not in job.file.read_text() + (job.directory / layout.SCRIPT).read_text()


def test_the_rank_that_failed_is_named(job):
    ended(job, 1, 1)
    told = {"host": "n10", "index": 1, "code": 9, "failures": [{"rank": 1, "exit_code": 9}]}
    (job.directory / layout.ended_file("n10")).write_text(json.dumps(told))
    record = close_run.close(job.directory, 9)
    assert (record.status, record.exit.code, record.exit.rank, record.exit.host) == ("failed", 9, 1, "n10")


def test_a_job_that_its_study_ended_completed_unless_a_rank_failed_before(job):
    ended(job, 143, 143)
    (job.directory / layout.ENOUGH).write_text("ended by its study after study.steps = 20\n")
    failed = {"host": "n10", "index": 1, "code": 9, "failures": [{"rank": 1, "exit_code": 9}]}
    record = close_run.close(job.directory, 0)
    assert (record.status, record.exit.code, record.exit.ended_by) == ("completed", 0, "study")
    assert record.exit.reason == "ended by its study after study.steps = 20"
    write_record(job.directory, job.record)
    (job.directory / layout.ended_file("n10")).write_text(json.dumps(failed))
    record = close_run.close(job.directory, 143)
    assert (record.status, record.exit.rank, record.exit.ended_by) == ("failed", 1, None)


def test_a_run_that_was_closed_stays_as_it_is(job):
    ended(job, 0, 0)
    first = close_run.close(job.directory, 0)
    assert close_run.close(job.directory, 3) == first
    assert close_run.close(job.directory) == first


def test_success_needs_the_word_of_every_host(job):
    ended(job, 0)
    record = close_run.close(job.directory, 0)
    assert record.status == "failed"
    assert "1 of 2 hosts did not report how their ranks ended" in record.exit.reason


def test_a_host_that_could_not_take_part_says_why(job):
    ended(job, 68, 68, reason="host n10: cannot resolve n9")
    assert close_run.close(job.directory, 68).exit.reason == "host n10: cannot resolve n9"


def test_what_slurm_ended_is_told_by_slurm(job, slurm):
    slurm(RUNNING.replace("RUNNING", "TIMEOUT"))
    record = close_run.close(job.directory)
    assert record.status == "failed"
    assert record.exit.reason.startswith("Slurm ended the job at its time limit")


def test_a_job_that_still_runs_is_not_closed(job, slurm):
    slurm(RUNNING)
    with pytest.raises(BadInput, match=r"Slurm job 7: running on n\[9-10\]: it is not over"):
        close_run.close(job.directory)
    assert read(job)["status"] == "running"


def test_where_slurm_does_not_answer_the_hosts_decide_if_all_have_spoken(job, slurm):
    slurm("")
    ended(job, 0)
    with pytest.raises(BadInput, match="Slurm says nothing of job 7; 1 of 2 hosts wrote"):
        close_run.close(job.directory)
    ended(job, 0, 0)
    assert close_run.close(job.directory).status == "completed"


def test_runs_of_other_launchers_are_left_alone(tmp_path):
    job = prepare(RunSpec(), kind="train", module="m", command=["m"], out=tmp_path)
    with pytest.raises(BadInput, match="launcher auto"):
        close_run.close(job.directory, 0)


@pytest.mark.parametrize(
    ("number", "hosts", "codes", "said"),
    [
        ("7", 2, (), "run.json says 'running': Slurm job 7 has not ended, or its launcher was killed; `allpull env"),
        ("7;east", 2, (0,), "run.json says 'running': Slurm job 7 has not ended, or its launcher was killed"),
        ("7", 2, (0, 0), "run.json says 'running', but every host of Slurm job 7 has ended: its launcher was gone"),
        ("$(reboot)", 2, (), "run.json says 'running': the job has not ended, or its launcher was killed"),
    ],
)
def test_who_reads_an_unclosed_run_is_told_whose_it_is_and_what_closes_it(job, number, hosts, codes, said):
    write_record(job.directory, job.record.model_copy(update={"job": number}))
    for path in (job.directory / "hosts").iterdir():
        path.unlink()
    for host in ("n9", "n10")[:hosts]:
        (job.directory / layout.host_file(host)).write_text(json.dumps(HOST | {"host": host}))
    ended(job, *codes)
    gaps = read_run(job.directory).gaps
    assert gaps[0].text.startswith(said)
    assert "`allpull env --finish RUN` closes the run" in gaps[0].text


HOST = json.loads(next(Path(__file__).parents[2].glob("runs/*/hosts/*.json")).read_text("utf-8"))


def test_what_is_prepared_has_a_script_that_can_be_submitted_and_says_that_it_did_not_begin(tmp_path):
    spec = RunSpec(name="digits", launch=LaunchSpec(launcher="slurm", ranks=2, hosts=2))
    script = training_script(spec, tmp_path, ())
    directory = script.parents[1]
    assert script == directory / layout.SCRIPT
    assert f"run={directory}\n" in script.read_text()
    assert JobFile.read(str(directory / layout.SPEC)).nonce
    assert "no job has begun" in read_run(directory).gaps[0].text
    (directory / layout.QUEUE).write_text("4711\n")
    assert "Slurm job 4711 has not ended" in read_run(directory).gaps[0].text


def test_a_prepared_array_has_one_script_for_all_its_runs(tmp_path):
    spec = RunSpec(launch=LaunchSpec(launcher="slurm"), slurm=SlurmSpec(array="1,4"))
    script = training_script(spec, tmp_path, ())
    array = script.parents[1]
    runs = sorted(path.name for path in array.iterdir() if (path / layout.RUN_JSON).exists())
    assert runs == [f"{array.name}_1", f"{array.name}_4"]
    assert f'run={array}/{array.name}_"$SLURM_ARRAY_TASK_ID"' in script.read_text()


def test_only_slurms_jobs_are_prepared(tmp_path):
    with pytest.raises(BadInput, match="the launcher is local"):
        training_script(RunSpec(launch=LaunchSpec(launcher="local")), tmp_path, ())
    assert list(tmp_path.iterdir()) == []
