"""Jobs under a real mpirun: OpenMPI starts the ranks, on this host and on a second one that is here too.

The second host is reached by a stand-in for ssh that runs OpenMPI's daemon on this machine under another host name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare
from allpull.launch.mpi import Mpi, find_mpirun
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

pytestmark = [pytest.mark.ranks, pytest.mark.mpi, pytest.mark.slow]

PATIENCE_S = 120.0  # two cores that others use too
SMALL = ("--set", "data.limit=200", "--set", "train.epochs=1")


@pytest.fixture(scope="module", autouse=True)
def openmpi() -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("not installed: mpirun (Debian: openmpi-bin)")
    if find_mpirun()[1] != "openmpi":
        pytest.skip("mpirun is not OpenMPI's")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """A function that prepares a job whose ranks run the text of a program."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(text: str, ranks: int = 2, hosts: int = 2) -> Job:
        (tmp_path / "program.py").write_text("import os\nRANK = os.environ['RANK']\n" + text)
        launch = LaunchSpec(launcher="mpi", ranks=ranks, hosts=hosts, grace_s=2)
        spec = RunSpec(name="program", launch=launch, observe=ObserveSpec(counter_interval_s=0.2))
        return prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "runs")

    return make


def processes_of(directory: Path) -> list[psutil.Process]:
    """What runs of the job in ``directory``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "-m" in words and any(str(directory) in word for word in words):
            found.append(process)
    return found


def none_left(directory: Path) -> bool:
    _, alive = psutil.wait_procs(processes_of(directory), timeout=60)
    return not alive


def test_four_ranks_on_two_hosts(run_cli, hostfile, tmp_path):
    out = tmp_path / "a \"b\" $(touch owned) 'c'"
    options = ("--launcher", f"mpi:{hostfile}", "--out", str(out), *SMALL)
    done = run_cli("train", "digits", "-n", "4", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 hosts, those of the file" in done.stderr
    (directory,) = out.iterdir()
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert (shown["ranks"], shown["hosts"], shown["status"]) == (4, 2, "completed")
    (counted,) = [path for path in (directory / "counters").iterdir() if path.stem == "elsewhere"]
    assert set(json.loads(counted.read_text().splitlines()[-1])["ranks"]) == {"2", "3"}  # found by its sidecar
    headers = [json.loads((directory / f"steps/rank-0000{r}.jsonl").open().readline()) for r in range(4)]
    assert [header["local_rank"] for header in headers] == [0, 1, 0, 1]
    hosts = [header["host"] for header in headers]
    assert hosts == [hosts[0], hosts[0], "elsewhere", "elsewhere"]
    assert json.loads((directory / "run.json").read_text())["hosts"] == [hosts[0], "elsewhere"]
    for folder in ("hosts", "counters"):
        assert sorted(path.stem for path in (directory / folder).iterdir()) == sorted(set(hosts))
    assert none_left(directory)
    assert not list(tmp_path.rglob("owned"))


def test_ranks_meet_on_the_loopback_interface_only(program):
    """Whoever is alone on one host opens no door to others."""
    job = program(
        "import json, psutil, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "found = [c.laddr.ip for c in psutil.Process().net_connections('inet') if c.status == 'LISTEN']\n"
        "print(json.dumps([total.item(), found]))\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n",
        hosts=1,
    )
    record = execute(job, Mpi(), lambda: None)
    assert record.exit is not None
    log = (job.directory / "job/logs/rank-00000.log").read_text()
    assert record.exit.code == 0, log
    total, listening = json.loads(log.splitlines()[-1])
    assert total == 2.0
    assert listening
    assert set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        pytest.param(
            "os._exit(7)",
            7,
            "rank 1 on elsewhere failed: exit code 7, no Python exception recorded",
            marks=pytest.mark.slow,
        ),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 on elsewhere was ended by SIGKILL"),
        ("raise ValueError('no such label: 11')", 1, "rank 1 on elsewhere failed: ValueError: no such label: 11"),
    ],
)
def test_the_rank_that_failed_is_named_and_its_code_passed_on(program, hostfile, ending, code, said):
    job = program(f"import time\nif RANK == '1':\n    time.sleep(0.5)\n    {ending}\ntime.sleep(300)\n")
    record = execute(job, Mpi(str(hostfile)), lambda: None)
    assert record.exit is not None
    assert record.exit.code == code
    assert record.exit.describe() == said
    assert none_left(job.directory)


def test_cancelling_ends_every_process(program, hostfile):
    job = program("import time; from allpull import marks; marks.step(1); time.sleep(300)\n", ranks=4)
    running = Mpi(str(hostfile)).submit(job)
    deadline = time.monotonic() + PATIENCE_S
    while len(list((job.directory / "counters").iterdir())) < 2 and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.1)
    assert len(processes_of(job.directory)) >= 6  # four ranks, two sidecars
    running.cancel(2)
    assert none_left(job.directory)


def test_a_warning_reaches_the_ranks_which_save_and_stop(tmp_path):
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--launcher", "mpi"]
    command += ["--set", "train.epochs=5000", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            steps = list(tmp_path.glob("*/steps/*"))
            if len(steps) == 2 and all(path.stat().st_size > 5000 for path in steps):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 138, err
    (directory,) = tmp_path.iterdir()
    record = json.loads((directory / "run.json").read_text())
    assert record["status"] == "cancelled"
    assert "stopped at a warning (SIGUSR1); --resume" in record["exit"]["reason"]
    assert all('"kind": "end"' in path.read_text() for path in (directory / "events").iterdir())
    assert none_left(directory)


def test_nothing_outlives_a_killed_allpull(tmp_path):
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--launcher", "mpi"]
    command += ["--set", "train.epochs=5000", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(list(tmp_path.glob("*/steps/*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        (directory,) = tmp_path.iterdir()
        assert processes_of(directory)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert none_left(directory)


def test_mpirun_that_cannot_start_ranks_says_why(program, hostfile, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "/no/such/program")
    job = program("")
    record = execute(job, Mpi(str(hostfile)), lambda: None)
    assert record.exit is not None
    assert record.status == "failed"
    assert record.exit.rank is None
    assert "/no/such/program" in "\n".join(record.exit.log_tail)
    assert os.path.exists(job.directory / "job/script.sh")
