"""A study as jobs of a real Slurm: one per run, each after the one before it; and inside one allocation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from services import SlurmCluster, until

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]

STUDY = """
[study]
name = "queued"
steps = 40
repeats = 1
warmup_steps = 2
timeout = "3 min"

[run]
recipe = "digits"
set = ["data.limit=1500", "slurm.master=127.0.0.1", "launch.grace_s=1"]
env = { NCCL_DEBUG = "WARN it" }

[[zip]]
ranks = [1, 2]
hosts = [1, 2]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "queued.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


def test_jobs_follow_each_other_and_fill_the_study(run_cli, cluster: SlurmCluster, study: Path, tmp_path: Path) -> None:
    done = run_cli("study", "submit", str(study), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(numbers) == 2
    again = run_cli("study", "submit", str(study), cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr  # they are in the queue already
    scripts = [Path(line.split(maxsplit=1)[1], "job/script.sh").read_text() for line in done.stdout.splitlines()]
    assert f"--dependency=afterany:{numbers[0]}" in scripts[1]
    assert "--dependency" not in scripts[0]
    assert all("export NCCL_DEBUG='WARN it'" in script for script in scripts)
    records = list((tmp_path / "studies/queued/runs").glob("*/run.json"))
    until(lambda: all(json.loads(path.read_text())["status"] == "completed" for path in records), "they do not end")
    shown = json.loads(run_cli("study", "show", "studies/queued", "--json", cwd=tmp_path).stdout)
    assert [(point["ranks"], point["hosts"], point["runs"][0]["state"]) for point in shown["points"]] == [
        (1, 1, "completed"),
        (2, 2, "completed"),
    ]
    assert shown["points"][1]["speedup"]["value"] > 0


@pytest.mark.slow
def test_inside_one_allocation_each_point_takes_the_hosts_that_it_needs(
    cluster: SlurmCluster, study: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "allpull", "study", "run", str(study), "--out", str(tmp_path / "here")]
    cluster.run("salloc", "--quiet", "--nodes=2", "--cpus-per-task=4", "sh", "-c", '"$@" 2>&1', "-", *command)
    records = [json.loads(path.read_text()) for path in (tmp_path / "here/runs").glob("*/run.json")]
    assert sorted((record["ranks"], len(record["hosts"]), record["status"]) for record in records) == [
        (1, 1, "completed"),
        (2, 2, "completed"),
    ]
