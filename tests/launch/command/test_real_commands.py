"""Commands of the user's as ranks, on every launcher: who they are, what they record, where their output goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allpull.rehearse.host import fake_clock

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

PROGRAM = """
import os, socket, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    net(torch.ones(3, 2)).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.barrier()
words = ("out", dist.get_rank(), sys.flags.optimize, *sys.argv[1:], round(time.time()))
# Each line is one write: unbuffered, print() writes word by word, and two ranks' words mix.
sys.stdout.write(" ".join(map(str, words)) + "\\n")
sys.stdout.flush()
sys.stderr.write(f"err {dist.get_rank()}\\n")
dist.barrier()  # else the agent may end the other before it has printed
rank = dist.get_rank()
dist.destroy_process_group()  # else Gloo's threads may abort the process as it ends
sys.exit(5 if "fail" in sys.argv and rank == 1 else 0)
"""
QUIET = ("--set", "observe.counters=false", "--set", "launch.grace_s=3")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The folder that holds ``train it.py``."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train it.py").write_text(PROGRAM)
    return folder


def ranks_of(out: Path) -> list[tuple[int, int, str]]:
    """Rank, ranks and host of every header, and that each has its four steps."""
    (directory,) = out.iterdir()
    found = []
    for path in sorted((directory / "steps").iterdir()):
        header, *steps = [json.loads(line) for line in path.read_text().splitlines()]
        assert [step["step"] for step in steps] == [0, 1, 2, 3]
        found.append((header["rank"], header["ranks"], header["host"]))
    return found


def outputs(text: str) -> list[list[str]]:
    """What the ranks printed, the time left out."""
    return sorted(line.split()[:-1] for line in text.splitlines() if line.startswith("out"))


def test_ranks_of_this_machine_print_where_they_would_without_us(run_cli, program, tmp_path):
    out = tmp_path / "runs"
    done = run_cli(
        "run", "-n", "2", "--out", str(out), *QUIET, "--", "python", "-O", "train it.py", "a b", "--token", "s3cret",
        "fail", cwd=program, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # no environment is activated
    )  # fmt: skip
    assert outputs(done.stdout) == [["out", str(rank), "1", "a", "b", "--token", "s3cret", "fail"] for rank in (0, 1)]
    host = socket.gethostname()
    (directory,) = out.iterdir()
    assert done.stderr.splitlines()[2:] == [  # what torch's agent says of the failure is in a log
        f"allpull: rank 1 on {host} failed: exit code 5, no Python exception recorded",
        f"run directory: {directory}",
    ]
    assert sorted(done.stderr.splitlines()[:2]) == ["err 0", "err 1"]
    assert done.returncode == 5
    assert ranks_of(out) == [(0, 2, host), (1, 2, host)]
    assert "_train-it_n2_" in directory.name
    record = json.loads((directory / "run.json").read_text())
    assert (record["kind"], record["ranks"], record["seed"], record["threads_per_rank"]) == ("run", 2, None, 1)
    assert "train" not in record["spec"]
    assert not [path for path in (directory / "job").glob("*.*") if "s3cret" in path.read_text()]
    assert "s3cret" not in json.dumps(record)


def test_hosts_that_share_no_folder_run_it_in_the_same_place(run_cli, ssh_hosts, program, tmp_path):
    """What lies in the test's own folder is hidden from these hosts, so the program stands elsewhere."""
    visible = ssh_hosts.folder / "code"
    shutil.copytree(program, visible)
    options = ("run", "-n", "2", "--launcher", "ssh:node[1-2]", "--out", str(tmp_path / "runs"), *QUIET, "--")
    done = run_cli(*options, sys.executable, "-O", "train it.py", cwd=visible, **ssh_hosts.environment)
    assert done.returncode == 0, done.stderr
    assert outputs(done.stdout) == [["out", "0", "1"], ["out", "1", "1"]]
    assert ranks_of(tmp_path / "runs") == [(0, 2, "node1"), (1, 2, "node2")]


@pytest.mark.ssh
def test_code_is_carried_to_hosts_that_share_no_folder(run_cli, ssh_hosts, program, tmp_path):
    before = set(ssh_hosts.left())
    (program / "helper.py").write_text("WORD = 'from here'\n")
    script = "import helper, sys\nsys.argv.append(helper.WORD)\n" + PROGRAM
    (program / "train it.py").write_text(script)
    options = ("run", "-n", "2", "--launcher", "ssh:node[1-2]", "--out", str(tmp_path / "runs"), *QUIET)
    absolute = run_cli(
        *options, "--set", "ssh.carry=.", "--", str(program / "train it.py"), cwd=program, **ssh_hosts.environment
    )
    assert absolute.returncode == 2
    assert "give its path from the working directory" in absolute.stderr
    done = run_cli(*options, "--set", "ssh.carry=.", "--", "train it.py", cwd=program, **ssh_hosts.environment)
    assert done.returncode == 0, done.stderr
    assert "2 files" in done.stderr
    assert sorted(done.stdout.split().count(word) for word in ("from", "here")) == [2, 2]
    assert {(rank, host) for rank, _, host in ranks_of(tmp_path / "runs")} == {(0, "node1"), (1, "node2")}
    assert not [name for name in set(ssh_hosts.left()) - before if name.startswith("allpull")]


def test_a_host_without_the_folder_of_the_command_says_so(tmp_path):
    job = {"command": ["{python}", "x.py"], "cwd": str(tmp_path / "nowhere"), "bind": "none", "directory": "/x"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "allpull.observe.rank.command", str(tmp_path / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == f"allpull: cannot start {sys.executable} in {tmp_path}/nowhere: No such file or directory\n"


def test_ranks_of_mpirun_meet_and_print_to_stdout(run_cli, program, tmp_path):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    done = run_cli("run", "-n", "2", "--launcher", "mpi", "--out", str(tmp_path / "runs"), *QUIET, "--", "train it.py",
                   cwd=program)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert outputs(done.stdout) == [["out", "0", "0"], ["out", "1", "0"]]
    assert "err 1" in done.stderr
    assert [rank for rank, _, _ in ranks_of(tmp_path / "runs")] == [0, 1]


def test_a_command_that_runs_mpirun_with_its_own_variables_is_not_broken(tmp_path):
    """OpenMPI aborts where variables are named on its command line and in its list."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    command = [sys.executable, "-m", "allpull", "run", "--out", str(tmp_path), *QUIET[:2], "--"]
    command += ["mpirun", "--allow-run-as-root", "-np", "1", "-x", "ALLPULL_TEST", "printenv", "ALLPULL_TEST"]
    environment = {"ALLPULL_TEST": "theirs", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stdout == "theirs\n", done.stderr


CLUSTER = """
[cluster]
hosts = 2
ranks_per_host = 1
link = "1 Gbit/s"
[accelerator]
model = "resnet50"
batch = 8
device = "V100"
[[faults]]
kind = "clock-offset"
host = 1
offset = "1000 s"
[[faults]]
kind = "slow-rank"
rank = 1
delay = "40 ms"
"""


@pytest.mark.root
def test_faults_of_hosts_act_on_a_command_and_those_of_the_accelerator_are_said_not_to(run_cli, program, tmp_path):
    if fake_clock.library() is None:
        pytest.skip("libfaketime is not installed")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made")
    (tmp_path / "c.toml").write_text(CLUSTER)
    options = ("--launcher", f"rehearse:{tmp_path / 'c.toml'}", "--out", str(tmp_path / "runs"), *QUIET)
    done = run_cli("run", "-n", "2", *options, "--", "train it.py", cwd=program)
    assert done.returncode == 0, done.stderr
    assert "do not act on a command of yours: slow-rank" in done.stderr
    assert ranks_of(tmp_path / "runs") == [(0, 2, "node1"), (1, 2, "node2")]
    printed = re.findall(r"^out (\d) 0 (\d{10})$", done.stdout, re.MULTILINE)
    clocks = {rank: int(realtime_s) for rank, realtime_s in printed}
    (directory,) = (tmp_path / "runs").iterdir()
    assert [fault["kind"] for fault in json.loads((directory / "truth.json").read_text())["faults"]] == ["clock-offset"]
    assert 990 < clocks["1"] - clocks["0"] < 1060  # both were printed within a minute
