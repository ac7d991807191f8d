"""Ranks that are started again from the last checkpoint, and ranks that keep to CPUs of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SETS = ("train.epochs=6", "train.log_every=1", "observe.counters=false", "data.limit=640", "train.batch=32")


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
    assert 0 < first["step"] <= again["steps_before"]
    scores = [event["value"] for event in events if event.get("name") == "test_loss"]
    assert scores[-1] == whole.metric("test_loss")[-1]
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert any("started again 1 time" in gap and "lost and done again" in gap for gap in shown["gaps"])


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


def test_restarts_are_refused_where_another_host_would_not_know(run_cli, tmp_path):
    done = run_cli(
        "train", "digits", "--launcher", "ssh:a,b", "-n", "2", "--set", "launch.max_restarts=1", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "launch.max_restarts" in done.stderr
    assert not (tmp_path / "runs").exists()
