"""A warning costs no step: real ranks save where they stand, all at the same step, and what goes on is exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

PATIENCE_S = 120.0
EPOCHS, STEPS_PER_EPOCH = 60, 4
LONG = ("data.limit=250", "train.batch=32", f"train.epochs={EPOCHS}", "train.log_every=1", "train.evaluate_every=60")
OPTIONS = (*LONG, "train.checkpoint_every=100000", "model.width=4", "observe.counters=false")
WARNED = 128 + signal.SIGUSR1


@dataclass(frozen=True, kw_only=True)
class Started:
    """A training that runs: the command line, and the run directory that it made."""

    process: subprocess.Popen[str]
    directory: Path

    def ranks(self) -> list[psutil.Process]:
        """The processes of the ranks, in no order."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in family if "allpull.observe.rank" in process.cmdline()]

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """A function that starts a training of some seconds and returns when every rank has made some steps."""
    processes = []

    def begin(ranks: int, *sets: str, **environment: str) -> Started:
        command = [sys.executable, "-m", "allpull", "train", "digits", "-n", str(ranks), "--out", str(tmp_path)]
        command += [word for text in (*OPTIONS, *sets) for word in ("--set", text)]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                             env={**os.environ, **environment})
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while len([file for file in tmp_path.glob("*/steps/*") if len(file.read_bytes().splitlines()) > 10]) < ranks:
            assert processes[-1].poll() is None, processes[-1].communicate()
            assert time.monotonic() < deadline, "no steps"
            time.sleep(0.05)
        (directory,) = tmp_path.iterdir()
        return Started(process=processes[-1], directory=directory)

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def saved(directory: Path) -> dict[int, dict[str, object]]:
    """What the checkpoints of a run hold, by step."""
    found = sorted((directory / "checkpoints").glob("*.pt"))
    return {int(path.stem.removeprefix("step-")): torch.load(path, weights_only=True) for path in found}


def last_steps(directory: Path, ranks: int) -> set[int]:
    """The last step that each rank recorded, as a number of steps done."""
    files = [directory / f"steps/rank-0000{rank}.jsonl" for rank in range(ranks)]
    return {json.loads(file.read_text().splitlines()[-1])["step"] + 1 for file in files}


def same(ours: object, theirs: object) -> bool:
    """Whether two nests of tensors and numbers are the same, bit for bit."""
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


def test_one_warned_rank_stops_all_and_nothing_is_lost(start, train_digits):
    """Weights, momentum, batch statistics of each rank and every loss are those of a run that nobody warned.

    And though ranks that fail may be started again, those that were warned are not.
    """
    run = start(2, "launch.max_restarts=3")
    one = max(run.ranks(), key=lambda process: int(process.environ()["RANK"]))
    one.send_signal(signal.SIGUSR1)
    code, err = run.end()
    assert code == WARNED, err
    assert "stopped at a warning (SIGUSR1); --resume " in err
    record = json.loads((run.directory / "run.json").read_text())
    assert (record["status"], record["exit"]["code"], record["exit"]["rank"]) == ("cancelled", WARNED, None)
    assert not (run.directory / "attempts").exists()
    (stopped,) = saved(run.directory)
    assert 10 <= stopped < EPOCHS * STEPS_PER_EPOCH
    assert last_steps(run.directory, 2) == {stopped}

    rest = train_digits(2, *OPTIONS, resume=run.directory)
    whole = train_digits(2, *OPTIONS)
    assert (rest.code, whole.code) == (0, 0), rest.err + whole.err
    assert rest.steps()[0]["step"] == stopped
    assert [step["step"] for step in rest.steps()] == list(range(stopped, EPOCHS * STEPS_PER_EPOCH))
    assert same(saved(rest.directory), saved(whole.directory))
    unfinished = (stopped - 1) // STEPS_PER_EPOCH * STEPS_PER_EPOCH  # losses are told after the last step of an epoch
    assert rest.metric("train_loss") == whole.metric("train_loss")[unfinished:]
    assert rest.metric("test_loss") == whole.metric("test_loss")


def test_a_warning_of_the_command_line_reaches_the_ranks(start):
    """The agent is told once more while ranks save: that must not end its patience with them."""
    run = start(2)
    agent = run.ranks()[0].parent()
    run.process.send_signal(signal.SIGUSR1)
    until_ignored(agent)
    agent.send_signal(signal.SIGUSR1)
    code, err = run.end()
    assert code == WARNED, err
    assert last_steps(run.directory, 2) == set(saved(run.directory))
    ended = json.loads(next((run.directory / "job/ended").iterdir()).read_text())
    assert (ended["code"], ended["failures"]) == (WARNED, [])


def until_ignored(process: psutil.Process) -> None:
    """Wait until ``process`` ignores SIGUSR1, which it does once it has heard it."""
    deadline = time.monotonic() + PATIENCE_S
    bit = 1 << (signal.SIGUSR1 - 1)
    while process.is_running() and time.monotonic() < deadline:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if int(status.partition("SigIgn:")[2].split()[0], 16) & bit:
            return
        time.sleep(0.01)
    raise AssertionError("it was not warned")


def test_a_rank_alone_stops_after_its_step(start):
    run = start(1)
    run.ranks()[0].send_signal(signal.SIGUSR1)
    code, err = run.end()
    assert code == WARNED, err
    assert last_steps(run.directory, 1) == set(saved(run.directory))


@pytest.mark.parametrize("asked", ["by a job script", pytest.param("by an option", marks=pytest.mark.slow), ""])
def test_sigterm_saves_where_that_was_asked_for(start, asked):
    """To the agent, which passes it on to all ranks: as when Slurm preempts. Elsewhere it ends them at once."""
    options = ["train.save_on_term=true", "launch.grace_s=60"] if asked == "by an option" else []
    run = start(2, *options, **({"ALLPULL_SAVE_ON_TERM": "1"} if asked == "by a job script" else {}))
    agent = psutil.Process(run.ranks()[0].ppid())
    agent.terminate()
    code, err = run.end()
    assert code == 128 + signal.SIGTERM, err
    assert set(saved(run.directory)) == (last_steps(run.directory, 2) if asked else set())


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_to_end_the_command_line_saves_too_where_that_was_asked_for(start, number):
    """SIGTERM as Kubernetes, PBS and LSF send it; and as ranks cannot tell, Ctrl-C."""
    run = start(2, "train.save_on_term=true", "launch.grace_s=60")
    run.process.send_signal(number)
    code, err = run.end()
    assert code == 128 + number, err
    assert set(saved(run.directory)) == last_steps(run.directory, 2) != set()


def test_ctrl_c_ends_the_job_and_saves_nothing(start):
    run = start(2)
    run.process.send_signal(signal.SIGINT)
    code, err = run.end()
    assert code == 130, err
    assert saved(run.directory) == {}
