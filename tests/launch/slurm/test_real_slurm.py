"""Jobs under a real Slurm of two hosts: a controller and two daemons on this machine, without munge or systemd."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from services import PATIENCE_S, SlurmCluster, until

from allpull.errors import BadInput
from allpull.launch.execute import execute
from allpull.launch.host_endings import HostEnding
from allpull.launch.job import Job, prepare
from allpull.launch.outcome import exit_of
from allpull.launch.slurm.launcher import BatchJob, Slurm
from allpull.schema.run import Exit
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec, SlurmSpec

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]

SMALL = ("--set", "data.limit=200", "--set", "train.epochs=1", "--set", "slurm.master=127.0.0.1")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: SlurmCluster) -> Callable[..., Job]:
    """A function that prepares a job of two hosts whose ranks run the text of a program, without torch in it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(text: str, **slurm: object) -> Job:
        (tmp_path / "program.py").write_text(text)
        return job_in(tmp_path / "runs", **slurm)

    return make


def job_in(out: Path, **slurm: object) -> Job:
    spec = RunSpec(
        name="program",
        launch=LaunchSpec(launcher="slurm", ranks=4, hosts=2, grace_s=1),
        slurm=SlurmSpec(master="127.0.0.1", **slurm),
        observe=ObserveSpec(counters=False),
    )
    return prepare(spec, kind="run", module="program", command=["program"], out=out)


@pytest.fixture(scope="module")
def limited(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> BatchJob:
    """A job that is at its time limit. Slurm looks every half minute, so the first test begins it for the last."""
    job = Slurm().submit(job_in(tmp_path_factory.mktemp("limited"), prologue=("sleep 300",)))
    assert isinstance(job, BatchJob)
    until(lambda: cluster.state(number_of(job)).startswith("RUNNING"), "it does not start")
    cluster.run("scontrol", "update", f"jobid={number_of(job)}", "EndTime=now+1")
    return job


def number_of(job: BatchJob) -> str:
    return job.state().split()[2].rstrip(":")


SLEEP = "import time; from allpull import marks; marks.step(1); time.sleep(300)\n"


def processes_of(directory: Path) -> list[psutil.Process]:
    """Agents and ranks of the job in ``directory`` that run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "-m" in words and any(str(directory) in word for word in words):
            found.append(process)
    return found


def wait_for_ranks(directory: Path) -> None:
    until(lambda: len(list((directory / "steps").iterdir())) == 4, f"no ranks: {(directory / 'job/logs').exists()}")


def test_four_ranks_on_two_hosts_from_a_hostile_place(run_cli, limited, tmp_path):
    out = tmp_path / "a \"b\" $(touch owned) 'c' 100%"
    options = ("--launcher", "slurm", "--set", "launch.hosts=2", "--out", str(out), *SMALL)
    done = run_cli("train", "digits", "-n", "4", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "running on n[1-2]" in done.stderr
    (directory,) = out.iterdir()
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert (shown["ranks"], shown["hosts"], shown["status"]) == (4, 2, "completed")
    assert shown["accuracy"] is not None
    record = json.loads((directory / "run.json").read_text())
    assert (record["launcher"], record["hosts"]) == ("slurm", ["n1", "n2"])
    headers = [json.loads((directory / f"steps/rank-0000{r}.jsonl").open().readline()) for r in range(4)]
    assert [header["host"] for header in headers] == ["n1", "n1", "n2", "n2"]
    for folder in ("hosts", "counters"):
        assert sorted(path.stem for path in (directory / folder).iterdir()) == ["n1", "n2"]
    assert "#SBATCH --nodes=2\n" in (directory / "job/script.sh").read_text()
    assert not list(tmp_path.rglob("owned"))


def test_inside_an_allocation_the_launcher_is_found_and_runs_a_step(run_cli, cluster, tmp_path):
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--out", str(tmp_path), *SMALL]
    done = cluster.run("salloc", "--quiet", "--nodes=2", "--cpus-per-task=4", "sh", "-c", '"$@" 2>&1', "-", *command)
    assert "launcher slurm: inside Slurm job" in done
    (directory,) = tmp_path.iterdir()
    record = json.loads((directory / "run.json").read_text())
    assert (record["status"], record["hosts"]) == ("completed", ["n1", "n2"])
    assert "srun --nodes=2" in (directory / "job/script.sh").read_text()


CANCEL_STEP = """
import sys, time
from pathlib import Path
from allpull.launch.job import prepare
from allpull.launch.slurm.launcher import Slurm
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec, SlurmSpec
launch = LaunchSpec(launcher="slurm", ranks=2, hosts=2)
spec = RunSpec(launch=launch, slurm=SlurmSpec(master="127.0.0.1"), observe=ObserveSpec(counters=False))
job = prepare(spec, kind="run", module="program", command=["program"], out=Path(sys.argv[1]))
running = Slurm().submit(job)
while len(list((job.directory / "steps").iterdir())) < 2:
    assert running.poll() is None
    time.sleep(0.1)
running.cancel(10)
print(job.directory, *(f"{host.host}:{host.code}" for host in running.poll()))
"""


def test_a_step_is_cancelled_politely(program, cluster, tmp_path):
    """The agents live long enough to write how their ranks ended; srun alone would have killed them."""
    program(SLEEP)
    step = [sys.executable, "-c", CANCEL_STEP, str(tmp_path / "steps")]
    said = cluster.run("salloc", "--quiet", "--nodes=2", "--cpus-per-task=1", *step)
    directory, *ended = said.splitlines()[-1].split()
    assert ended == ["n1:143", "n2:143"]
    assert processes_of(Path(directory)) == []


def test_the_rank_that_failed_is_named_and_its_code_passed_on(program):
    job = program("import os, time\nif os.environ['RANK'] == '3': os._exit(7)\ntime.sleep(300)\n")
    record = execute(job, Slurm(), lambda: None)
    assert record.exit is not None
    assert (record.status, record.exit.code, record.exit.rank, record.exit.host) == ("failed", 7, 3, "n2")
    assert processes_of(job.directory) == []


def test_cancelling_ends_every_process(program, cluster):
    job = program(SLEEP)
    running = Slurm().submit(job)
    assert isinstance(running, BatchJob)
    wait_for_ranks(job.directory)
    assert len(processes_of(job.directory)) >= 6
    running.cancel(2)
    assert processes_of(job.directory) == []
    assert cluster.state(number_of(running)).startswith("CANCELLED")


def test_a_job_that_others_cancelled_says_so(program, cluster):
    running = Slurm().submit(program(SLEEP, prologue=("sleep 300",)))
    until(lambda: cluster.state(number_of(running)).startswith("RUNNING"), "it does not start")
    cluster.run("scancel", number_of(running))
    assert end_of(running).describe().startswith("the job was cancelled, by scancel or an administrator")


def end_of(running: BatchJob) -> Exit:
    """How a job ends that Slurm ends: never well, and by no rank's fault."""
    ended: list[HostEnding] | None = None
    deadline = time.monotonic() + PATIENCE_S
    while ended is None and time.monotonic() < deadline:
        ended = running.poll()
        time.sleep(0.1)
    assert ended is not None
    end = exit_of(ended)
    assert (end.code != 0, end.rank) == (True, None)
    return end


def test_a_refused_job_says_what_sbatch_said(program, cluster):
    job = program(SLEEP, partition="no-such-one")
    with pytest.raises(BadInput, match=r"sbatch refused the job: .*invalid partition"):
        execute(job, Slurm(), lambda: None)
    assert json.loads((job.directory / "run.json").read_text())["status"] == "failed"
    assert cluster.run("squeue", "--noheader", "--format=%P %j").count("no-such-one") == 0


def test_a_script_that_fails_before_the_ranks_shows_its_log(program):
    job = program(SLEEP, prologue=("echo this goes wrong", "exit 9"))
    record = execute(job, Slurm(), lambda: None)
    assert record.exit is not None
    assert record.exit.code == 9
    assert "did not report how their ranks ended" in (record.exit.reason or "")
    assert "this goes wrong" in record.exit.log_tail


def test_the_time_limit_is_said(limited):
    assert end_of(limited).describe().startswith("Slurm ended the job at its time limit")


def test_a_lost_host_is_said(limited, program, cluster):
    """The last test, because every job on that host ends with it."""
    end_of(limited)
    running = Slurm().submit(program(SLEEP, prologue=("sleep 300",)))
    until(lambda: cluster.state(number_of(running)).startswith("RUNNING"), "it does not start")
    cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    assert end_of(running).describe().startswith("a host of the job failed")
    cluster.run("scontrol", "update", "nodename=n2", "state=idle")
