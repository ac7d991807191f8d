"""Arrays under a real Slurm: every run has its seed and its directory, and they are waited for and ended together."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from services import PATIENCE_S, SlurmCluster, until

from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare
from allpull.launch.slurm.launcher import Slurm
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec, SlurmSpec
from allpull.schema.trainspec import TrainSpec

pytestmark = [pytest.mark.ranks, pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: SlurmCluster) -> Callable[..., Job]:
    """A function that prepares an array whose ranks, one a run, run the text of a program without torch in it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(text: str, array: str, **slurm: object) -> Job:
        (tmp_path / "program.py").write_text("import os, signal, sys, time\nfrom allpull import marks\n" + text)
        spec = RunSpec(
            name="program",
            train=TrainSpec(seed=40),
            launch=LaunchSpec(launcher="slurm", grace_s=1),
            slurm=SlurmSpec(array=array, **slurm),
            observe=ObserveSpec(counters=False),
        )
        return prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "runs")

    return make


def record_of(run: Job) -> dict[str, object]:
    return json.loads((run.directory / "run.json").read_text())


def test_the_first_run_that_fails_gives_the_code_and_all_others_are_finished(program):
    ending = "sys.exit({'3': 7, '5': 9}.get(os.environ['SLURM_ARRAY_TASK_ID'], 0))\n"
    job = program(f"marks.step(1)\ntime.sleep(4)\n{ending}", "1-5:2%2")  # long enough to be seen running
    said: list[str] = []
    record = execute(job, Slurm(), lambda: None, said.append)
    assert (record.status, record.exit.code, record.id) == ("failed", 7, job.tasks[1].directory.name)
    assert [run.directory.name for run in job.tasks] == [f"{job.directory.name}_{index}" for index in (1, 3, 5)]
    records = [record_of(run) for run in job.tasks]
    assert [one["id"] for one in records] == [run.directory.name for run in job.tasks]
    assert [(one["status"], one["exit"]["code"], one["seed"]) for one in records] == [
        ("completed", 0, 41),
        ("failed", 7, 43),
        ("failed", 9, 45),
    ]
    assert [one["spec"]["train"]["seed"] for one in records] == [41, 43, 45]
    specs = [json.loads(run.file.read_text())["spec"]["train"]["seed"] for run in job.tasks]
    assert specs == [41, 43, 45]
    for run in job.tasks:
        assert len((run.directory / "steps/rank-00000.jsonl").read_text().splitlines()) == 2
        assert any(line.startswith(f"{run.directory}: ") for line in said)
    assert any("Slurm array" in line and "running" in line for line in said)


def test_cancelling_ends_every_run_and_those_that_wait(program, cluster):
    job = program("marks.step(1)\ntime.sleep(300)\n", "0-2%2")
    running = Slurm().submit(job)
    until(lambda: sum(bool(list((run.directory / "steps").iterdir())) for run in job.tasks) == 2, "two do not start")
    running.cancel(2)
    number = running.state().split()[2].rstrip(":")
    states = cluster.run("squeue", "--noheader", "--array", "--states=all", f"--jobs={number}", "--format=%T").split()
    assert states == ["CANCELLED"] * 3
    here = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in here if str(job.directory) in words and " -m " in words]


def test_one_run_that_is_warned_queues_again_and_the_others_go_on(program, cluster, tmp_path):
    """Signals and requeues name the run, never the array."""
    text = """
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(138))
marks.step(1)
again = bool(os.environ.get("ALLPULL_RESUME"))
while not again and not os.path.exists("finish"):
    time.sleep(0.05)
"""
    job = program(text, "0-1", requeues=1, prologue=(f"cd '{tmp_path}'",))
    records = []
    waiting = threading.Thread(target=lambda: records.append(wait_for(job)))
    waiting.start()
    until(lambda: all(list((run.directory / "steps").iterdir()) for run in job.tasks), "they do not start")
    numbers = cluster.run("squeue", "--noheader", "--array", "--name=program", "--states=R", "--format=%i").split()
    last = next(number for number in numbers if number.endswith("_1"))
    cluster.run("scancel", "--batch", "--signal=USR1", last)
    until(lambda: cluster.state(last) == "PENDING BeginTime", "it does not go back to the queue")
    assert cluster.state(last.replace("_1", "_0")).startswith("RUNNING")
    cluster.run("scontrol", "update", f"jobid={last}", "StartTime=now+2")  # else Slurm waits for two minutes
    (tmp_path / "finish").touch()
    waiting.join(PATIENCE_S)
    assert records == [[0, 0]]
    assert [(run.directory / "attempts").exists() for run in job.tasks] == [False, True]


def wait_for(job: Job) -> list[int]:
    """What ``execute`` does outside of the main thread, where no signals can be listened to: the codes of all runs."""
    running = Slurm().submit(job)

    def over() -> bool:
        return running.poll() is not None

    until(over, "the array does not end")
    return [running.ended_runs()[place][0].code for place in range(len(job.tasks))]


def test_the_command_line_trains_every_seed(run_cli, cluster, tmp_path):
    sets = ("slurm.array=0-1", "data.limit=130", "train.epochs=1", "train.seed=7", "observe.counters=false")
    options = [word for text in sets for word in ("--set", text)]
    done = run_cli("train", "digits", "--launcher", "slurm", "--out", str(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    (array,) = tmp_path.iterdir()
    assert f"run directory: {array}" in done.stderr
    shown = json.loads(run_cli("show", *map(str, sorted(array.iterdir())), "--json").stdout)["runs"]
    assert [run["status"] for run in shown] == ["completed"] * 2
    assert [json.loads(path.read_text())["seed"] for path in sorted(array.glob("*/run.json"))] == [7, 8]
    losses = [path.read_text().count("test_loss") for path in array.glob("*/events/rank-00000.jsonl")]
    assert losses == [1, 1]
