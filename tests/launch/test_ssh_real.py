"""Trainings on two hosts over real OpenSSH, which share no folder with each other or with us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.ssh]

SMALL = ("--set", "data.limit=256", "--set", "train.batch=16", "--set", "launch.grace_s=3")


def agents() -> list[psutil.Process]:
    """Agents and ranks that run on this machine now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word in ("allpull.observe.agent", "allpull.observe.rank", "allpull.observe.sidecar") for word in words):
            found.append(process)
    return found


def none_left(before: set[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not [process for process in agents() if process.pid not in before]:
            return True
        time.sleep(0.2)
    return False


def train(run_cli, hosts, out: Path, *options: str, launcher: str = "ssh:node[1-2]", ranks: int = 4):
    return run_cli(
        "train", "digits", "-n", str(ranks), "--launcher", launcher, "--out", str(out), *SMALL, *options,
        **hosts.environment,
    )  # fmt: skip


def test_four_ranks_on_two_hosts_that_share_no_folder(run_cli, ssh_hosts, tmp_path):
    out = tmp_path / "a \"b\" $(touch owned) 'c'"
    before = {process.pid for process in agents()}
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
    assert none_left(before)
    for name in ssh_hosts.names:
        listing = [str(ssh_hosts.path / "ssh"), name, 'ls "$TMPDIR"']
        left = subprocess.run(listing, capture_output=True, text=True, check=True)
        assert "allpull" not in left.stdout  # what was made there was removed
        assert "torchelastic" not in left.stdout


def test_shipped_code_and_a_host_file(run_cli, ssh_hosts, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nnode1 slots=2\nnode2  # the other\n")
    done = train(
        run_cli, ssh_hosts, tmp_path / "runs", "--set", "train.epochs=1", "--set", "ssh.ship=true",
        launcher=f"ssh:{hostfile}", ranks=2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_crash_on_one_host_ends_the_other_and_is_named(run_cli, ssh_hosts, tmp_path):
    before = {process.pid for process in agents()}
    process = start(ssh_hosts, tmp_path / "runs")
    wait_for_ranks(before, 4)
    victim = next(p for p in agents() if p.pid not in before and p.environ().get("RANK") == "3")
    victim.kill()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 137, err
    assert "rank 3 on node2 was ended by SIGKILL" in err
    assert none_left(before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_orphaned_when_we_are_stopped(ssh_hosts, tmp_path, number):
    before = {process.pid for process in agents()}
    process = start(ssh_hosts, tmp_path / "runs")
    wait_for_ranks(before, 4)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert none_left(before)


def test_a_warning_reaches_the_ranks_of_all_hosts_which_save_and_stop(ssh_hosts, tmp_path):
    before = {process.pid for process in agents()}
    process = start(ssh_hosts, tmp_path / "runs", "--set", "launch.grace_s=30")
    wait_for_ranks(before, 4)
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 138, err
    (directory,) = (tmp_path / "runs").iterdir()
    assert (
        "stopped at a warning (SIGUSR1); --resume" in json.loads((directory / "run.json").read_text())["exit"]["reason"]
    )
    assert all('"kind": "end"' in path.read_text() for path in (directory / "events").iterdir())
    assert none_left(before)


def start(hosts, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "4", "--launcher", "ssh:node[1-2]"]
    command += ["--out", str(out), *SMALL, "--set", "train.epochs=5000", *options]
    environment = {**os.environ, **hosts.environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_ranks(before: set[int], count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ranks = [p for p in agents() if p.pid not in before and "allpull.observe.rank" in p.cmdline()]
        if len(ranks) == count and all(p.cpu_times().user > 2.5 for p in ranks):
            return
        time.sleep(0.2)
    raise AssertionError("the ranks did not come up")


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
