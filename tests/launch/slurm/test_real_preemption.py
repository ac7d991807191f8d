"""A training that a real Slurm preempts, or warns of its limit, loses no step and ends as if it had not been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import PATIENCE_S, SlurmCluster, until

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]

SETS = ("data.limit=200", "train.batch=20", "train.log_every=1", "train.evaluate_every=1000", "model.width=4")
OPTIONS = (*SETS, "train.checkpoint_every=100000")
STEPS_PER_EPOCH = 5  # 200 samples, 2 ranks of 20 each
PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 State=UP MaxTime=60
PartitionName=high Nodes=ALL PriorityTier=10 State=UP MaxTime=60
"""


@pytest.fixture(scope="module")
def preemptive(cluster: SlurmCluster) -> SlurmCluster:
    """A cluster where jobs of partition high push those of partition low aside, a minute after they say so."""
    with (cluster.folder / "slurm.conf").open("a") as file:
        file.write(PREEMPTION)
    cluster.run("scontrol", "reconfigure")
    until(lambda: "low" in cluster.run("sinfo", "--noheader", "--format=%R"), "no such partition")
    return cluster


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that submits a training of two ranks on two hosts, and returns when some of its steps are done."""
    started = []

    def start(*sets: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--launcher", "slurm"]
        for text in (*OPTIONS, "slurm.master=127.0.0.1", "launch.hosts=2", "slurm.requeues=1", *sets):
            command += ["--set", text]
        started.append(
            subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        )
        until(lambda: len(steps(tmp_path, 0)) > 10, "no steps")
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def steps(out: Path, rank: int, place: str = "") -> list[dict[str, object]]:
    """The step records of a rank so far; in ``place``, a folder of the run directory."""
    return [
        json.loads(line)
        for file in out.glob(f"*/{place}steps/rank-0000{rank}.jsonl")
        for line in file.read_text().splitlines()[1:]
    ]


def state(directory: Path) -> dict[str, object]:
    """What the newest checkpoint holds of the network."""
    newest = max((directory / "checkpoints").glob("*.pt"))
    stored = torch.load(newest, weights_only=True)
    return {"step": stored["step"], **stored["model"], **{f"{k}0": v for k, v in stored["ranks"][0]["buffers"].items()}}


def requeued(cluster: SlurmCluster, number: str) -> None:
    """Wait until the job is in the queue again, and let it begin.

    Slurm would wait for two minutes; within the second of the requeue it would refuse the job's credential.
    """
    until(lambda: cluster.state(number) == "PENDING BeginTime", "it does not go back to the queue")
    cluster.run("scontrol", "update", f"jobid={number}", "StartTime=now+2")


@pytest.mark.parametrize(
    ("reason", "epochs"),  # preemption waits for Slurm's next look at the queue, and the training must still run then
    [pytest.param("preempted", 120, marks=pytest.mark.slow), ("limit", 80)],
)
def test_no_step_is_lost_and_the_weights_are_those_of_an_undisturbed_run(
    preemptive, training, train_digits, tmp_path, reason, epochs
):
    process = training("slurm.partition=low", "slurm.exclusive=true", f"train.epochs={epochs}")
    number = preemptive.run("squeue", "--noheader", "--name=digits", "--states=RUNNING", "--format=%i")
    if reason == "preempted":
        preemptive.run("sbatch", "--partition=high", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=true")
    else:
        preemptive.run("scancel", "--batch", "--signal=USR1", number)
    undisturbed = train_digits(2, *OPTIONS, f"train.epochs={epochs}")  # while Slurm ends the job, and holds it back
    requeued(preemptive, number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "attempt 2" in err
    for rank in (0, 1):
        done = [step["step"] for place in ("attempts/0/", "") for step in steps(tmp_path, rank, place)]
        assert done == list(range(epochs * STEPS_PER_EPOCH))
        assert 10 < len(steps(tmp_path, rank, "attempts/0/")) < len(done)
    (directory,) = tmp_path.glob("*digits*")
    ours, theirs = state(directory), state(undisturbed.directory)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(theirs[name])) for name in ours)


@pytest.mark.slow
def test_a_job_whose_ranks_were_started_again_in_place_is_requeued_too(preemptive, training, tmp_path):
    """Attempts are counted on: first a rank is killed, then the job is warned, and of both the record tells."""
    process = training("train.epochs=120", "train.checkpoint_every=20", "launch.max_restarts=1")
    until(lambda: list(tmp_path.glob("*/checkpoints/*.pt")), "no checkpoint")
    (header,) = tmp_path.glob("*/steps/rank-00001.jsonl")
    os.kill(json.loads(header.read_text().splitlines()[0])["pid"], signal.SIGKILL)
    until(lambda: all(steps(tmp_path, rank, "attempts/0/") for rank in (0, 1)), "no restart in place")
    until(lambda: len(steps(tmp_path, 0)) > 10, "no step after it")
    number = preemptive.run("squeue", "--noheader", "--name=digits", "--states=RUNNING", "--format=%i")
    preemptive.run("scancel", "--batch", "--signal=USR1", number)
    requeued(preemptive, number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    for rank in (0, 1):
        told = [json.loads(line) for file in tmp_path.glob(f"*/events/rank-0000{rank}.jsonl") for line in file.open()]
        assert [event["attempt"] for event in told if event.get("kind") == "restarted"] == [2]
        assert len(steps(tmp_path, rank, "attempts/1/")) > 10
        assert steps(tmp_path, rank)[0]["step"] == steps(tmp_path, rank, "attempts/1/")[-1]["step"] + 1
        assert steps(tmp_path, rank)[-1]["step"] == 120 * STEPS_PER_EPOCH - 1


@pytest.mark.slow
def test_a_cancelled_job_stays_cancelled(preemptive, training):
    """Its ranks are told by the same signal as when it is preempted."""
    process = training("train.epochs=5000")
    number = preemptive.run("squeue", "--noheader", "--name=digits", "--states=RUNNING", "--format=%i")
    preemptive.run("scancel", number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "the job was cancelled, by scancel or an administrator" in err
    assert preemptive.state(number).startswith("CANCELLED")
