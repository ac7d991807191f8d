"""Ranks that are started again from the last checkpoint, and ranks that keep to CPUs of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import services

from allpull.config.load import load_spec
from allpull.launch.host_endings import HostEnding, RankFailure, read_host_endings
from allpull.launch.job import environment, prepare, with_secrets
from allpull.launch.outcome import exit_of
from allpull.launch.ssh.launcher import LOST, blame_lost_host

SETS = ("train.epochs=6", "train.log_every=1", "observe.counters=false", "data.limit=640", "train.batch=32")


@pytest.mark.slow
@pytest.mark.ranks
def test_a_killed_rank_is_started_again_and_nothing_but_time_is_lost(train_digits, run_cli, tmp_path):
    """The last evaluation is bit for bit that of a training that nobody disturbed."""
    whole = train_digits(2, *SETS)
    options = [word for text in (*SETS, "launch.max_restarts=2") for word in ("--set", text)]
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--out", str(tmp_path), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        os.kill(wait_for_checkpoint(tmp_path, process), signal.SIGKILL)
        _, err = process.communicate(timeout=180)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, err
    (directory,) = tmp_path.iterdir()
    assert (directory / "attempts/0/steps/rank-00000.jsonl").exists()
    events = [json.loads(line) for line in (directory / "events/rank-00000.jsonl").read_text().splitlines()[1:]]
    again = next(event for event in events if event["kind"] == "restarted")
    first = next(event for event in events if event["kind"] == "epoch")
    assert again["attempt"] == 1
    assert first["step"] > 0  # the last fifth of a second before the kill may have left no record
    scores = [event["value"] for event in events if event.get("name") == "test_loss"]
    assert scores[-1] == whole.metric("test_loss")[-1]
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert any("started again 1 time; " in gap for gap in shown["gaps"]), shown["gaps"]


def wait_for_checkpoint(out: Path, process: subprocess.Popen[str]) -> int:
    """The process of rank 1, once a checkpoint is there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if list(out.glob("*/checkpoints/step-*.pt")):
            (path,) = out.glob("*/steps/rank-00001.jsonl")
            with path.open() as file:
                return int(json.loads(file.readline())["pid"])
        time.sleep(0.02)
    raise AssertionError("no checkpoint appeared")


@pytest.mark.slow
@pytest.mark.ranks
def test_ranks_keep_to_cpus_of_their_own(train_digits):
    usable = sorted(os.sched_getaffinity(0))
    done = train_digits(2, "launch.bind=cores", "train.epochs=1", "observe.counters=false", "data.limit=128")
    assert done.code == 0, done.err
    headers = [json.loads((done.directory / f"steps/rank-0000{rank}.jsonl").open().readline()) for rank in (0, 1)]
    if len(usable) == 2:
        assert [header["cpus"] for header in headers] == [str(usable[0]), str(usable[1])]
    else:
        assert headers[0]["cpus"] != headers[1]["cpus"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--launcher", "mpi"), "an MPI job ends as a whole"),
        (("--launcher", "rehearse:two.toml"), "a rank that fails on a virtual cluster ends the job"),
    ],
)
def test_restarts_are_refused_where_they_cannot_be_had_with_the_reason(run_cli, tmp_path, options, why):
    (tmp_path / "two.toml").write_text('[cluster]\nhosts = 2\nlink = "1 Gbit/s"\n')
    done = run_cli("train", "digits", "-n", "2", *options, "--set", "launch.max_restarts=1", cwd=tmp_path)
    assert done.returncode == 2
    assert "launch.max_restarts" in done.stderr
    assert why in done.stderr
    assert not (tmp_path / "runs").exists()


class TwoHosts:
    """A training on two hosts of this machine that share its folders: an agent each, and no launcher."""

    def __init__(self, out: Path, ranks: int, *sets: str, module: str = "allpull.train") -> None:
        asked = (*SETS, f"launch.ranks={ranks}", "launch.launcher=ssh:n0,n1", "launch.grace_s=2", *sets)
        self.job = prepare(load_spec("digits", asked), kind="train", module=module, command=["x"], out=out)
        port = services.free_ports(1)[0]
        self.agents = [
            subprocess.Popen(
                [sys.executable, "-m", "allpull.observe.agent", str(self.job.file), "--host-index", str(index),
                 "--hosts", "2", "--master", "127.0.0.1", "--port", str(port), "--name", f"n{index}"],
                env=with_secrets(self.job, environment(self.job.spec, os.environ)), stderr=subprocess.DEVNULL,
            )
            for index in (0, 1)
        ]  # fmt: skip

    def kill_rank(self, rank: int, times: int) -> None:
        """Kill ``rank`` so often, each time as a new process that has made steps, after the first checkpoint."""
        killed: set[int] = set()
        steps = self.job.directory / f"steps/rank-{rank:05d}.jsonl"
        checkpoints = self.job.directory / "checkpoints"
        while len(killed) < times:
            assert all(agent.poll() is None for agent in self.agents)
            records = steps.read_text().splitlines() if steps.exists() and any(checkpoints.glob("step-*.pt")) else []
            pid = json.loads(records[0])["pid"] if len(records) > 1 else None
            if pid is not None and pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def wait(self) -> list[int]:
        """The agents' exit codes."""
        return [agent.wait(timeout=180) for agent in self.agents]

    def end(self) -> None:
        for agent in self.agents:
            agent.terminate()
            agent.wait()


@pytest.mark.slow
@pytest.mark.ranks
def test_a_rank_that_dies_once_more_than_allowed_ends_all_hosts_and_is_named(tmp_path):
    """Both hosts count both restarts, though only one had a rank that was killed."""
    hosts = TwoHosts(tmp_path, 2, "launch.max_restarts=1")
    try:
        hosts.kill_rank(1, times=2)
        codes = hosts.wait()
    finally:
        hosts.end()
    assert codes[0] > 0
    assert codes[1] == 137
    assert exit_of(read_host_endings(hosts.job.directory)).describe() == "rank 1 on n1 was ended by SIGKILL"
    assert sorted(path.name for path in (hosts.job.directory / "attempts").iterdir()) == ["0"]
    assert [[event["attempt"] for event in restarts(hosts.job.directory, rank)] for rank in (0, 1)] == [[1], [1]]


STUCK = """
import os, sys, time
from pathlib import Path
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("start", attempt, flush=True)
asleep = Path(__file__).with_name(f"asleep-{attempt}")
if os.environ["RANK"] == "1":
    while not asleep.exists():
        time.sleep(0.02)
    sys.exit(3)
asleep.touch()
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_ranks_that_notice_nothing_are_started_again_and_ended_like_the_others(tmp_path, monkeypatch):
    """Rank 0 sleeps, as one does that waits for NCCL: only its agent hears that rank 1 failed, both times."""
    (tmp_path / "stuck.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    hosts = TwoHosts(tmp_path / "runs", 2, "launch.max_restarts=1", module="stuck")
    try:
        assert hosts.wait() == [1, 3]
    finally:
        hosts.end()
    ended = [json.loads((hosts.job.directory / f"job/ended/n{index}.json").read_text()) for index in (0, 1)]
    assert [[failure["rank"] for failure in one["failures"]] for one in ended] == [[], [1]]
    for rank in (0, 1):
        assert (hosts.job.directory / f"job/logs/rank-{rank:05d}.log").read_text() == "start 0\nstart 1\n"


def told(directory: Path, rank: int) -> list[dict[str, Any]]:
    """The events of ``rank``."""
    return [json.loads(line) for line in (directory / f"events/rank-{rank:05d}.jsonl").read_text().splitlines()[1:]]


def restarts(directory: Path, rank: int) -> list[dict[str, Any]]:
    """The restarts among them."""
    return [event for event in told(directory, rank) if event["kind"] == "restarted"]


FOUR = ("train.epochs=3", "train.log_every=1", "observe.counters=false", "data.limit=640", "train.batch=16")
FOUR += ("model.dtype=float64",)  # buckets are cut anew after a restart, and four ranks then add in another order


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.ssh
def test_hosts_that_share_no_folder_start_again_together_from_the_first_ones_checkpoint(
    train_digits, run_cli, ssh_hosts, tmp_path
):
    """Rank 3 of 4 is killed once; the last evaluation is that of a training on one undisturbed host."""
    process = start_over_ssh(ssh_hosts, tmp_path, *FOUR, "launch.max_restarts=2")
    try:
        os.kill(rank_after_checkpoint(3, ssh_hosts, process).pid, signal.SIGKILL)
        _, err = process.communicate(timeout=180)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, err
    (directory,) = tmp_path.iterdir()
    before = [again["steps_before"] for rank in range(4) for again in restarts(directory, rank)]
    first = {next(event["step"] for event in told(directory, rank) if event["kind"] == "epoch") for rank in range(4)}
    assert len(before) == 4
    assert len(first) == 1  # all went on from one checkpoint
    assert first.pop() > 0
    for rank in range(4):
        assert (directory / f"attempts/0/steps/rank-{rank:05d}.jsonl").exists()
    scores = [event["value"] for event in told(directory, 0) if event.get("name") == "test_loss"]
    assert scores[-1] == pytest.approx(train_digits(4, *FOUR).metric("test_loss")[-1], rel=1e-9)
    assert len(list((directory / "checkpoints").iterdir())) == 2  # those that were handed over did not come home too
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert any("1 more started again 1 time" in gap for gap in shown["gaps"]), shown["gaps"]


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.ssh
def test_a_host_that_is_lost_ends_the_job_and_is_blamed_where_restarts_were_left(ssh_hosts, tmp_path):
    """No victim is named: the ranks of the other host failed because of it, and called a restart that it cannot join.

    The launcher ends the job; nobody waits for the host that does not come.
    """
    process = start_over_ssh(ssh_hosts, tmp_path, *FOUR, "launch.max_restarts=5", "launch.grace_s=3")
    try:
        rank = rank_after_checkpoint(3, ssh_hosts, process)
        agents = [rank.parent(), rank_processes(ssh_hosts, 0)[0].parent()]
        started = [process for agent in agents for process in (agent, *agent.children(recursive=True))]
        agents[0].kill()
        _, err = process.communicate(timeout=180)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 124, err
    assert "host node2 was lost" in err
    assert "rank" not in err.partition("host node2 was lost")[0].splitlines()[-1]
    words = {one.pid: one.cmdline() for one in started if one.is_running()}
    assert [words.get(one.pid) for one in psutil.wait_procs(started, timeout=60)[1]] == []
    (directory,) = tmp_path.iterdir()
    assert (directory / "job/ended/node1.json").exists()  # a hangup, and the end of its parent, did not cut it off
    clean = [str(ssh_hosts.path / "ssh"), "node2", 'rm -rf "$TMPDIR"/allpull-*']  # its ranks may write to the last
    assert subprocess.run(clean, check=False).returncode == 0


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.slurm
def test_slurm_does_not_end_a_job_whose_rank_is_started_again(cluster, tmp_path):
    """srun ends everything when an agent fails, so no agent may: the killed rank is its own host's business."""
    options = [word for text in (*SETS, "launch.max_restarts=1", "launch.hosts=2") for word in ("--set", text)]
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--launcher", "slurm"]
    process = subprocess.Popen(
        [*command, "--set", "slurm.master=127.0.0.1", "--out", str(tmp_path), *options],
        env={**os.environ, **cluster.environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        os.kill(wait_for_checkpoint(tmp_path, process), signal.SIGKILL)
        _, err = process.communicate(timeout=180)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, err
    (directory,) = tmp_path.iterdir()
    assert json.loads((directory / "run.json").read_text())["hosts"] == ["n1", "n2"]
    assert [[event["attempt"] for event in restarts(directory, rank)] for rank in (0, 1)] == [[1], [1]]


def test_a_lost_host_is_to_blame_for_what_others_died_of_but_not_for_a_failure_of_its_own():
    victim = RankFailure(rank=0, host="n1", exit_code=1, exception="RuntimeError: Connection closed by peer")
    own = RankFailure(rank=1, host="n2", exit_code=255)  # as ssh says that it lost a host
    fine, hit = HostEnding(host="n1", code=1, failures=(victim,)), HostEnding(host="n2", code=LOST)
    assert exit_of(blame_lost_host([fine, hit], {"n2"})).describe().startswith("host n2 was lost")
    assert exit_of(blame_lost_host([fine, hit], {"n2"})).code == LOST
    assert exit_of(blame_lost_host([fine, hit], set())).describe().startswith("rank 0 on n1 failed")
    failed = [fine, HostEnding(host="n2", code=LOST, failures=(own,))]
    assert blame_lost_host(failed, {"n2"}) == failed


def start_over_ssh(hosts, out: Path, *sets: str) -> subprocess.Popen[str]:
    options = [word for text in sets for word in ("--set", text)]
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "4", "--launcher", "ssh:node[1-2]"]
    return subprocess.Popen(
        [*command, "--out", str(out), *options], env={**os.environ, **hosts.environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def rank_processes(hosts, rank: int) -> list[psutil.Process]:
    """The processes of one rank on these hosts; other tests of this machine have hosts and scratch of their own."""
    wanted = {"RANK": str(rank), "TMPDIR": str(hosts.folder / "scratch")}.items()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "allpull.observe.rank" in process.cmdline() and wanted <= process.environ().items():
                found.append(process)
    return found


def rank_after_checkpoint(rank: int, hosts, launcher: subprocess.Popen[str]) -> psutil.Process:
    """A rank's process, once rank 0 has written a checkpoint where only its own host sees it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and launcher.poll() is None:
        for writer in rank_processes(hosts, 0):
            job_file = next(word for word in writer.cmdline() if word.endswith("spec.json"))
            checkpoints = Path(f"/proc/{writer.pid}/root{job_file}").parent.parent / "checkpoints"
            if any(checkpoints.glob("step-*.pt")):
                return rank_processes(hosts, rank)[0]
        time.sleep(0.05)
    raise AssertionError("no checkpoint appeared")
