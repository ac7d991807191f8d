"""Trainings on two hosts over real OpenSSH, which share no folder with each other or with us."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from services import SshHosts, until

pytestmark = [pytest.mark.ranks, pytest.mark.ssh]

SMALL = ("--set", "data.limit=256", "--set", "train.batch=16", "--set", "launch.grace_s=3")


def none_left(hosts: SshHosts) -> bool:
    _, alive = psutil.wait_procs(hosts.processes(), timeout=60)
    return not alive


def train(run_cli, hosts, out: Path, *options: str, launcher: str = "ssh:node[1-2]", ranks: int = 4):
    return run_cli(
        "train", "digits", "-n", str(ranks), "--launcher", launcher, "--out", str(out), *SMALL, *options,
        **hosts.environment,
    )  # fmt: skip


def test_four_ranks_on_two_hosts_that_share_no_folder(run_cli, ssh_hosts, tmp_path):
    out = tmp_path / "a \"b\" $(touch owned) 'c'"
    before = ssh_hosts.left()
    done = train(run_cli, ssh_hosts, out, "--set", "train.epochs=2")
    assert done.returncode == 0, done.stderr
    (directory,) = out.iterdir()
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert (shown["ranks"], shown["hosts"], shown["status"]) == (4, 2, "completed")
    assert shown["throughput"]["value"] > 0
    assert shown["accuracy"] is not None
    record = json.loads((directory / "run.json").read_text())
    assert record["hosts"] == ["node1", "node2"]
    assert sorted(path.name for path in (directory / "steps").iterdir()) == [f"rank-0000{r}.jsonl" for r in range(4)]
    assert sorted(path.name for path in (directory / "hosts").iterdir()) == ["node1.json", "node2.json"]
    assert sorted(path.name for path in (directory / "counters").iterdir()) == ["node1.jsonl", "node2.jsonl"]
    headers = [json.loads((directory / f"steps/rank-0000{r}.jsonl").open().readline()) for r in range(4)]
    assert [header["host"] for header in headers] == ["node1", "node1", "node2", "node2"]
    assert (directory / "checkpoints").is_dir()
    assert not Path("owned").exists()
    assert none_left(ssh_hosts)
    new = set(ssh_hosts.left()) - set(before)
    assert not [name for name in new if name.startswith(("allpull", "torchelastic"))]  # what was made was removed


def test_a_crash_on_one_host_ends_the_other_and_is_named(run_cli, ssh_hosts, tmp_path):
    process = start(ssh_hosts, tmp_path / "runs")
    wait_for_steps(ssh_hosts, 2)
    victim = next(p for p in ssh_hosts.processes() if p.environ().get("RANK") == "1")
    victim.kill()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 137, err
    assert "rank 1 on node2 was ended by SIGKILL" in err
    assert none_left(ssh_hosts)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_nothing_is_orphaned_when_we_are_stopped(ssh_hosts, tmp_path, number):
    process = start(ssh_hosts, tmp_path / "runs")
    wait_for_steps(ssh_hosts, 2)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert none_left(ssh_hosts)


def test_a_warning_reaches_the_ranks_of_all_hosts_which_save_and_stop(ssh_hosts, tmp_path):
    """The hosts are those of a file and have our code from us, because each training costs seconds."""
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nnode1 slots=2\nnode2  # the other\n")
    options = ("--set", "launch.grace_s=60", "--set", "ssh.ship=true")
    process = start(ssh_hosts, tmp_path / "runs", *options, launcher=f"ssh:{hostfile}")
    wait_for_steps(ssh_hosts, 2)
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 138, err
    (directory,) = (tmp_path / "runs").iterdir()
    assert (
        "stopped at a warning (SIGUSR1); --resume" in json.loads((directory / "run.json").read_text())["exit"]["reason"]
    )
    assert all('"kind": "end"' in path.read_text() for path in (directory / "events").iterdir())
    assert none_left(ssh_hosts)


def start(hosts, out: Path, *options: str, launcher: str = "ssh:node[1-2]") -> subprocess.Popen[str]:
    """A training of two ranks, one a host, that ends when it is ended."""
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--launcher", launcher]
    command += ["--out", str(out), *SMALL, "--set", "train.epochs=5000", *options]
    environment = {**os.environ, **hosts.environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_steps(hosts: SshHosts, count: int) -> None:
    """Wait until so many ranks train: they have written steps, which only their own hosts see."""
    until(lambda: sum(map(trains, hosts.processes())) == count, "the ranks did not come up")


def trains(process: psutil.Process) -> bool:
    """Whether ``process`` is a rank that has made steps."""
    with contextlib.suppress(psutil.Error, OSError, StopIteration):
        job_file = next(word for word in process.cmdline() if word.endswith("spec.json"))
        steps = Path(f"/proc/{process.pid}/root{job_file}").parents[1] / "steps"
        rank = process.environ()["RANK"] if "allpull.observe.rank" in process.cmdline() else "none"
        return (steps / f"rank-{rank:>05}.jsonl").read_bytes().count(b"\n") > 5
    return False


@pytest.mark.parametrize(
    ("launcher", "ranks", "expected"),
    [
        ("ssh:node1,nobody", 2, "host nobody: "),
        ("ssh:wrongkey", 1, "Permission denied"),
        ("ssh:node[1-2", 2, "node[1-2"),
        ("ssh:node1,node1", 2, "named twice"),
        ("ssh:node[1-2]", 3, "cannot be divided evenly over 2 hosts"),
        ("ssh", 1, "needs hosts"),
        ("ssh:-oProxyCommand=touch", 1, "no host name"),
    ],
)
def test_a_host_list_that_cannot_work_is_one_clear_error(run_cli, ssh_hosts, tmp_path, launcher, ranks, expected):
    done = train(run_cli, ssh_hosts, tmp_path, launcher=launcher, ranks=ranks)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_without_that_python_says_how_to_name_it(run_cli, ssh_hosts, tmp_path):
    done = train(run_cli, ssh_hosts, tmp_path, "--set", "ssh.python=/no/such/python")
    assert done.returncode == 2
    assert "ssh.python=" in done.stderr


def test_a_host_with_another_version_is_named(run_cli, ssh_hosts, tmp_path):
    """A Python that has no allpull and no torch: the machine's own."""
    done = train(run_cli, ssh_hosts, tmp_path, "--set", "ssh.python=/usr/bin/python3", ranks=2)
    assert done.returncode == 2
    assert "allpull" in done.stderr
    assert "ssh.ship=true" in done.stderr


@pytest.mark.slow
def test_clocks_of_hosts_that_share_a_machine_agree_within_their_bound(run_cli, ssh_hosts, tmp_path):
    done = run_cli(
        "probe", "clock", "-n", "2", "--launcher", "ssh:node[1-2]", "--for", "2s", "--json", cwd=tmp_path,
        **ssh_hosts.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    offsets = json.loads(done.stdout)["offsets"]
    assert [(one["host"], one["against"], one["clock"]) for one in offsets] == [
        ("node2", "node1", "monotonic"),
        ("node2", "node1", "realtime"),
    ]
    for one in offsets:
        assert abs(one["offset_s"]) <= one["offset_bound_s"]
        assert abs(one["drift_ppm"]) <= one["drift_bound_ppm"] + 0.01
