"""Which rank failed first, and what of a job is written down."""

from __future__ import annotations

import os
import stat

from hypothesis import given
from hypothesis import strategies as st

from allpull.launch.job import git_state, prepare
from allpull.launch.outcome import Ended, RankFailure, exit_of, first_failure, log_tail
from allpull.schema.spec import DataSpec, RunSpec


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


def test_a_rank_that_we_ended_is_never_the_cause_when_another_failed():
    found = first_failure([failure(0, -15), failure(1, 3)])
    assert found is not None
    assert found.rank == 1


@given(st.permutations([failure(0, -15), failure(1, 1, 7), failure(2, -11), failure(3, 1, 3)]))
def test_the_cause_does_not_depend_on_the_order_of_reports(failures):
    assert exit_of([Ended(host="n1", code=1, failures=tuple(failures))]).rank == 2


def test_signals_become_shell_codes():
    exit_ = exit_of([Ended(host="n1", code=1, failures=(failure(2, -11),))])
    assert (exit_.code, exit_.signal) == (139, "SIGSEGV")
    assert exit_of([Ended(host="n1", code=0)]).code == 0
    assert exit_of([Ended(host="n1", code=0), Ended(host="n2", code=4)]).code == 4


def test_a_log_tail_is_bounded_and_masked(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000 + b"\n" + b"\xff\n" * 30 + b"HF_TOKEN=abc\n")
    tail = log_tail(path)
    assert len(tail) == 20
    assert tail[-1] == "HF_TOKEN=[redacted]"
    assert log_tail(tmp_path / "none") == ()


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
    for written in ("run.json", "job/script.sh"):
        text = (job.directory / written).read_text()
        assert "s3cret" not in text
        assert "eyJ" not in text
    assert job.record.redacted >= 4
    assert stat.S_IMODE((job.directory / "run.json").stat().st_mode) == 0o600
    assert len(os.listdir(tmp_path)) == 1


def test_two_jobs_of_one_second_do_not_meet(tmp_path):
    names = {prepare(RunSpec(), kind="train", module="m", command=[], out=tmp_path).directory.name for _ in range(5)}
    assert len(names) == 5


def test_a_folder_without_git_has_no_git_state(tmp_path):
    assert git_state(tmp_path) == (None, 0)
