"""A study under a real Slurm: its jobs follow each other, and end once they have measured enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from services import SlurmCluster, until

pytestmark = [pytest.mark.ranks, pytest.mark.slurm, pytest.mark.slow]

ENDLESS = """
import itertools, os, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.environ["MODE"] == "raise":
    raise ValueError("no such mode")
for _ in itertools.count():
    time.sleep(float(sys.argv[1]))
    optimizer.zero_grad(); model(torch.randn(8, 4)).sum().backward(); optimizer.step()
"""
STUDY = """
[study]
name = "endless"
steps = 40
timeout = "20 min"
[run]
command = ["train.py", "0.05"]
env = { MODE = "{mode}" }
set = ["slurm.master=127.0.0.1"]
[axes]
mode = ["raise", "go"]
ranks = [2]
hosts = [2]
"""


def test_jobs_of_an_endless_program_end_after_their_steps(run_cli, cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    (tmp_path / "study.toml").write_text(STUDY)
    done = run_cli("study", "submit", "study.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(numbers) == 2
    for number in numbers:
        until(lambda number=number: cluster.state(number).startswith(("COMPLETED", "FAILED")), f"job {number} goes on")
    points = json.loads(run_cli("study", "show", "out", "--json", cwd=tmp_path).stdout)["points"]
    for point in points:
        (run,) = point["runs"]
        if point["parameters"]["mode"] == "raise":
            assert (run["state"], "no such mode" in run["reason"]) == ("failed", True)
            continue
        assert run["state"] == "completed", run
        directory = tmp_path / "out" / run["run"]
        record = json.loads((directory / "run.json").read_text())
        assert (record["exit"]["code"], record["exit"]["ended_by"]) == (0, "study")
        assert cluster.state(record["job"]).startswith("COMPLETED")
        last = [json.loads(path.read_text().splitlines()[-1])["step"] for path in (directory / "steps").iterdir()]
        assert last == [39, 39]
    assert run_cli("study", "submit", "study.toml", "--out", "out", cwd=tmp_path).stdout.count("\n") == 1  # the failed
