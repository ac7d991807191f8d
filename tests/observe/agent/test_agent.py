"""What an agent says where it cannot take part, and that a warning is neither an error nor a reason to start again."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException

from allpull.launch.job import Job, prepare
from allpull.observe.agent import __main__ as agent
from allpull.observe.agent import remote_setup
from allpull.observe.agent.elastic import ElasticAgent
from allpull.observe.agent.rendezvous import FAILED
from allpull.rundir import layout
from allpull.rundir.job_file import SECRETS_VARIABLE
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

pytestmark = pytest.mark.torch


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    spec = RunSpec(launch=LaunchSpec(ranks=2), observe=ObserveSpec(counters=False))
    job = prepare(spec, kind="train", module="program", command=["x"], out=tmp_path / "runs")
    monkeypatch.setenv(SECRETS_VARIABLE, job.secrets)
    return job


def test_an_agent_without_the_secrets_of_its_job_says_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRETS_VARIABLE)
    command = [sys.executable, "-m", "allpull.observe.agent", str(job.file), "--name", "n9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == agent.NO_SECRETS
    assert f"the secrets that {job.file} masks did not reach this host" in done.stderr


def test_secrets_in_a_file_are_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRETS_VARIABLE, "")
    path = remote_setup.private_file("the secrets")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    agent.take_secrets(path)
    assert os.environ[SECRETS_VARIABLE] == "the secrets"
    assert not os.path.exists(path)


@pytest.mark.parametrize(("index", "name"), [(0, "n9"), (1, "n10")])
def test_a_first_host_that_nobody_knows_is_said_with_what_to_do(job: Job, index: int, name: str) -> None:
    command = [sys.executable, "-m", "allpull.observe.agent", str(job.file), "--hosts", "2", "--host-index", str(index)]
    command += ["--master", "no-such-host.invalid", "--name", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == agent.NO_HOST
    expected = "cannot resolve no-such-host.invalid, the address of the first host: with Slurm, set slurm.master"
    assert done.stderr.startswith(expected)
    assert "Traceback" not in done.stderr
    told = json.loads((job.directory / layout.ended_file(name)).read_text())
    assert (told["index"], told["code"], told["failures"]) == (index, agent.NO_HOST, [])
    assert told["reason"].startswith(f"host {name}: {expected}")


class Fixed(logging.StreamHandler[Any]):
    """A handler whose stream is what ``sys.stderr`` is, as ``logging.lastResort`` and dill's are."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:  # type: ignore[override]  # as in logging._StderrHandler
        return sys.stderr


class Broken(Fixed):
    """A handler without any stream."""

    @property
    def stream(self) -> Any:  # type: ignore[override]  # as above
        raise RuntimeError("no stream yet")


def test_handlers_of_other_libraries_do_not_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # so that it is put back
    usual, logger = logging.StreamHandler(sys.stderr), logging.getLogger("somebody.else")
    handlers: list[logging.Handler] = [Fixed(), Broken(), usual]
    for handler in handlers:
        logger.addHandler(handler)
    try:
        agent.redirect_log(str(tmp_path / "log"))
        assert usual.stream is sys.stderr
        logger.handlers.remove(handlers[1])
        logger.error("printed twice")
        assert (tmp_path / "log").read_text().count("printed twice") == 2
    finally:
        logger.handlers.clear()


def test_a_warning_is_handed_to_the_agent_of_any_torch_once() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        signal.signal(signal.SIGUSR1, agent.warned)
        with pytest.raises(SignalException) as caught:
            signal.raise_signal(signal.SIGUSR1)
        assert caught.value.sigval == signal.SIGUSR1
        signal.raise_signal(signal.SIGUSR1)  # while ranks save
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("state", "codes", "outcome", "left"),
    [
        (WorkerState.FAILED, (1,), None, 3),
        (WorkerState.FAILED, (138,), None, 0),
        (WorkerState.FAILED, (-15, 138), None, 0),
        (WorkerState.HEALTHY, (), FAILED, 0),
        (WorkerState.HEALTHY, (), None, 3),
    ],
)
def test_ranks_that_stopped_at_a_warning_are_not_started_again(
    monkeypatch: pytest.MonkeyPatch, state: WorkerState, codes: tuple[int, ...], outcome: str | None, left: int
) -> None:
    failures: dict[int, Any] = {rank: SimpleNamespace(exitcode=code) for rank, code in enumerate(codes)}
    result = RunResult(state=state, failures=failures)
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: result)
    one = object.__new__(ElasticAgent)
    one._hosts = SimpleNamespace(outcome=lambda: outcome)
    one._remaining_restarts = 3
    one._pcontext = None
    one._monitor_workers(None)
    assert one._remaining_restarts == left


@pytest.mark.parametrize(("code", "well"), [(0, True), (138, True), (1, False), (143, False)])
def test_a_rank_that_stopped_at_a_warning_has_ended_well(job: Job, tmp_path: Path, code: int, well: bool) -> None:
    (tmp_path / "program.py").write_text(f"raise SystemExit({code})\n")
    command = [sys.executable, "-m", "allpull.observe.rank", str(job.file), "program"]
    assert subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, check=False).returncode == code
    assert ('"kind": "end"' in (job.directory / layout.events_file(0)).read_text()) is well
