"""Which rank failed first, and what of a job is written down."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.errors import BadInput, RunDirError
from allpull.launch.code_versions import git_state
from allpull.launch.execute import execute
from allpull.launch.host_endings import HostEnding, RankFailure
from allpull.launch.job import prepare, prospect
from allpull.launch.outcome import exit_of, first_failure
from allpull.rundir import layout
from allpull.rundir.tidy import close_directory
from allpull.rundir.write import SCRATCH
from allpull.schema.spec import RunSpec, SlurmSpec
from allpull.schema.trainspec import DataSpec


def failure(rank: int, code: int, raised_ns: int | None = None) -> RankFailure:
    return RankFailure(rank=rank, host="n1", exit_code=code, raised_ns=raised_ns)


def test_a_rank_killed_from_outside_comes_before_those_that_then_failed():
    found = first_failure([failure(0, 1, raised_ns=5), failure(3, -9), failure(1, 1, raised_ns=4)])
    assert found is not None
    assert found.rank == 3


def test_of_several_exceptions_the_earliest_is_the_cause():
    found = first_failure([failure(0, 1, raised_ns=50), failure(2, 1, raised_ns=40), failure(1, -15)])
    assert found is not None
    assert found.rank == 2


def test_a_rank_that_exited_without_a_word_comes_before_those_that_lost_their_connection_to_it():
    """By os._exit, or the C library's exit: what the others raise names a peer, and not why it went."""
    lost = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:55195: Connection reset by peer."
    victims = [replace(failure(rank, 1, raised_ns=rank), exception=lost) for rank in (0, 2)]
    assert first_failure([*victims, failure(1, 3)]) == failure(1, 3)
    assert first_failure([*victims, failure(1, -15)]) == victims[0], "we ended that one"
    cause = replace(failure(3, 1, raised_ns=9), exception="ValueError: no such label")
    assert first_failure([*victims, failure(1, 3), cause]) == cause


def test_a_rank_that_ended_well_before_others_lost_it_is_named():
    """The others fail for it, and it is in no list of failures."""
    lost = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:55195: Connection reset by peer."
    victim = replace(failure(0, 1, raised_ns=1), exception=lost)
    ended = exit_of([HostEnding(host="n1", code=1, failures=(victim,), finished=(1,))])
    assert (ended.rank, ended.reason) == (
        0,
        "rank 1 had ended with exit code 0 by then: by fewer batches, or os._exit?",
    )
    raised = replace(victim, exception="ValueError: no such label")
    assert exit_of([HostEnding(host="n1", code=1, failures=(raised,), finished=(1,))]).reason is None
    assert exit_of([HostEnding(host="n1", code=1, failures=(victim,))]).reason is None


def test_of_one_host_a_rank_whose_boot_is_not_known_is_compared_by_the_same_clock():
    """As of one that found no room for its header on a full disk."""
    first, then = failure(0, 2, raised_ns=40), failure(1, 1, raised_ns=50)
    known = {"boot_id": "b", "realtime_ahead_ns": 10**18}
    for one, other in ((replace(first, **known), then), (first, replace(then, **known))):
        assert first_failure([one, other]) == one


def test_a_rank_that_we_ended_is_never_the_cause_when_another_failed():
    found = first_failure([failure(0, -15), failure(1, 3)])
    assert found is not None
    assert found.rank == 1


def test_a_rank_that_raised_and_was_ended_on_its_way_out_keeps_its_exception():
    """Its exit takes longer than the agent waits before it ends the others, and then it is one of them."""
    raised = RankFailure(rank=1, host="n1", exit_code=-15, exception="ValueError: no", raised_ns=5)
    victim = RankFailure(rank=0, host="n1", exit_code=1, exception="RuntimeError: gone", raised_ns=9)
    exit_ = exit_of([HostEnding(host="n1", code=1, failures=(victim, raised))])
    assert (exit_.rank, exit_.exception, exit_.signal, exit_.code) == (1, "ValueError: no", None, 1)


@given(st.permutations([failure(0, -15), failure(1, 1, 7), failure(2, -11), failure(3, 1, 3)]))
def test_the_cause_does_not_depend_on_the_order_of_reports(failures):
    assert exit_of([HostEnding(host="n1", code=1, failures=tuple(failures))]).rank == 2


def test_a_rank_that_ended_by_a_signal_before_we_ended_any_is_the_cause():
    """Also by SIGTERM, which is what we send: the agent looks who is gone before it does."""
    lost = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:55195: Connection reset by peer."
    cause = replace(failure(1, -15), was_ended=False)
    raised = replace(failure(0, 1, raised_ns=3), exception=lost, was_ended=False)
    victims = [replace(failure(rank, -15), was_ended=True) for rank in (2, 3)]
    assert first_failure([raised, cause, *victims]) == cause
    assert first_failure([*victims, cause]) == cause
    slow_to_end = replace(failure(0, -9), was_ended=True)
    assert first_failure([slow_to_end, raised]) == raised


def test_signals_become_shell_codes():
    exit_ = exit_of([HostEnding(host="n1", code=1, failures=(failure(2, -11),))])
    assert (exit_.code, exit_.signal) == (139, "SIGSEGV")
    assert exit_of([HostEnding(host="n1", code=0)]).code == 0
    assert exit_of([HostEnding(host="n1", code=0), HostEnding(host="n2", code=4)]).code == 4


def test_a_prepared_job_is_private_complete_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "s3cret")
    monkeypatch.setenv("UNRELATED", "s3cret")
    spec = RunSpec(name='a"b\n<i>\x1b[31m', data=DataSpec(path="https://me:s3cret@example.org/data"))
    job = prepare(spec, kind="train", module="m", command=["allpull", "--token", "s3cret"], out=tmp_path)
    assert stat.S_IMODE(job.directory.stat().st_mode) == 0o700
    assert job.directory.name.endswith("_n1_" + job.directory.name.rsplit("_", 1)[1])
    assert "/" not in job.directory.name
    assert job.record.status == "created"
    text = (job.directory / "run.json").read_text()
    assert "s3cret" not in text
    assert "eyJ" not in text
    assert job.record.redacted >= 4
    assert stat.S_IMODE((job.directory / "run.json").stat().st_mode) == 0o600
    assert len(os.listdir(tmp_path)) == 1


class Refusing:
    """A launcher that has a plan and starts nothing."""

    def plan(self, job):
        return "export HF_TOKEN=s3cret\nexec train\n"

    def submit(self, job):
        raise BadInput("no room")


def test_what_was_to_run_is_kept_without_secrets_even_where_nothing_started(tmp_path):
    job = prepare(RunSpec(), kind="train", module="m", command=[], out=tmp_path)
    with pytest.raises(BadInput, match="no room"):
        execute(job, Refusing(), lambda: None)
    assert (job.directory / "job/script.sh").read_text() == "export HF_TOKEN=[redacted]\nexec train\n"
    assert json.loads((job.directory / "run.json").read_text())["status"] == "failed"


def test_lists_of_a_specification_are_masked_too(tmp_path):
    slurm = SlurmSpec(prologue=("export WANDB_API_KEY=s3cret", "cd /scratch"))
    job = prepare(RunSpec(slurm=slurm), kind="train", module="m", command=[], out=tmp_path)
    assert job.record.spec["slurm"]["prologue"] == ["export WANDB_API_KEY=[redacted]", "cd /scratch"]
    assert "s3cret" not in (job.directory / "run.json").read_text()


def test_a_prospect_writes_nothing_and_is_what_is_then_prepared(tmp_path):
    asked = {"kind": "train", "module": "m", "command": ["allpull", "train"], "out": tmp_path / "new"}
    seen = prospect(RunSpec(), **asked)
    assert not list(tmp_path.iterdir())
    made = prepare(RunSpec(), **asked)
    assert made.directory.parent == seen.directory.parent
    assert made.directory.name.split("_")[1:] == seen.directory.name.split("_")[1:]  # all but the second they were made


def test_the_name_of_a_run_does_not_depend_on_secrets(tmp_path):
    """Its hash would let whoever sees the name and the masked specification try out passwords."""

    def signature(program, spec=None):
        job = prospect(spec or RunSpec(), kind="run", module="m", command=[], out=tmp_path, program=program)
        return job.directory.name.rpartition("_")[2]

    assert signature(["t.py", "--token", "aaa"]) == signature(["t.py", "--token", "bbb"])
    assert signature(["t.py", "--size", "aaa"]) != signature(["t.py", "--size", "bbb"])
    one, other = (RunSpec(slurm=SlurmSpec(prologue=(f"export HF_TOKEN={secret}",))) for secret in ("aaa", "bbb"))
    assert signature(["t.py"], one) == signature(["t.py"], other) != signature(["t.py"])


@pytest.mark.parametrize("other_is_a_run", [True, False])
def test_what_took_the_place_of_a_run_directory_is_left_alone(tmp_path, other_is_a_run):
    """Whoever may write to the folder of runs can put a link to other folders of the user there."""

    def made(out):
        spec = RunSpec(name=out)  # of one second and one name, their ids would be the same
        return prepare(spec, kind="run", module="m", command=[], out=tmp_path / out, program=["t.py"])

    job, other = made("shared"), made("mine").directory
    (other / layout.CHECKPOINTS).mkdir(exist_ok=True)
    (other / layout.CHECKPOINTS / f"precious{SCRATCH}").write_text("precious")
    if not other_is_a_run:
        (other / layout.RUN_JSON).unlink()
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    job.directory.rename(tmp_path / "moved")
    job.directory.symlink_to(other)
    with pytest.raises(RunDirError, match="has taken the place" if other_is_a_run else "not a run directory"):
        close_directory(job.directory, job.record.model_copy(update={"status": "completed"}))
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before
    job.directory.unlink()
    (tmp_path / "moved").rename(job.directory)
    close_directory(job.directory, job.record.model_copy(update={"status": "completed"}))
    assert not (job.directory / layout.HOOK).exists()


def test_two_jobs_of_one_second_do_not_meet(tmp_path):
    names = {prepare(RunSpec(), kind="train", module="m", command=[], out=tmp_path).directory.name for _ in range(5)}
    assert len(names) == 5


def test_a_folder_without_git_has_no_git_state(tmp_path):
    assert git_state(tmp_path) == (None, 0)
