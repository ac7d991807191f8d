"""Jobs under a real Slurm that nobody of ours looks after: submitted by hand, or their launcher was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from services import SlurmCluster, until

pytestmark = [pytest.mark.ranks, pytest.mark.slurm, pytest.mark.slow]

HOSTS = ("--launcher", "slurm", "--set", "launch.hosts=2", "--set", "slurm.master=127.0.0.1")


def record_in(out: Path) -> dict[str, Any]:
    (path,) = out.glob("*/run.json")
    return json.loads(path.read_text())


def test_a_prepared_script_is_submitted_by_hand_and_its_run_can_be_read(run_cli, cluster: SlurmCluster, tmp_path: Path):
    small = ("--set", "data.limit=200", "--set", "train.epochs=1")
    made = run_cli("train", "digits", "-n", "2", *HOSTS, *small, "--out", str(tmp_path / "a b"), "--prepare")
    assert made.returncode == 0, made.stderr
    script = made.stdout.strip()
    assert cluster.run("squeue", "--noheader") == ""
    number = cluster.run("sbatch", "--parsable", script)
    until(lambda: record_in(tmp_path / "a b")["status"] != "created", "nobody closed the run")
    record = record_in(tmp_path / "a b")
    assert (record["status"], record["job"], record["hosts"]) == ("completed", number, ["n1", "n2"])
    shown = json.loads(run_cli("show", str(Path(script).parents[1]), "--json").stdout)["runs"][0]
    assert (shown["ranks"], shown["hosts"], shown["status"]) == (2, 2, "completed")
    assert not [gap for gap in shown["gaps"] if "run.json says" in gap]
    assert "nonce" not in json.loads((Path(script).parent / "spec.json").read_text())
    again = cluster.run("sbatch", "--parsable", script)
    until(lambda: cluster.state(again).startswith("FAILED"), "a second job takes the same directory")
    assert record_in(tmp_path / "a b") == record


PROGRAM = """
import os, time
from allpull import marks
marks.step(1)
while not os.path.exists(os.environ["GO_ON"]):
    time.sleep(0.1)
"""

LAUNCH = """
import sys
from pathlib import Path
from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.launch.slurm.launcher import Slurm
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec, SlurmSpec
launch = LaunchSpec(launcher="slurm", ranks=2, hosts=2)
spec = RunSpec(launch=launch, slurm=SlurmSpec(master="127.0.0.1"), observe=ObserveSpec(counters=False))
execute(prepare(spec, kind="train", module="program", command=["x"], out=Path(sys.argv[1])), Slurm(), lambda: None)
"""


@pytest.fixture
def orphan(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run directory of a job whose ranks wait for a file ``go``, and whose launcher was killed."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GO_ON", str(tmp_path / "go"))
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path / "runs")], env=os.environ)
    until(lambda: len(list((tmp_path / "runs").glob("*/steps/*"))) == 2, "no ranks")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    assert record_in(tmp_path / "runs")["status"] == "running"
    (directory,) = (tmp_path / "runs").iterdir()
    return directory


def test_the_script_closes_the_run_where_its_launcher_was_killed(run_cli, orphan: Path, tmp_path: Path):
    number = record_in(tmp_path / "runs")["job"]
    busy = run_cli("env", "--finish", str(orphan))
    assert busy.returncode == 2
    assert f"Slurm job {number}: running on n[1-2]: it is not over" in busy.stderr
    (tmp_path / "go").touch()
    until(lambda: record_in(tmp_path / "runs")["status"] == "completed", "nobody closed the run")
    assert "nonce" not in json.loads((orphan / "job/spec.json").read_text())


def test_a_job_that_was_cancelled_behind_a_dead_launcher_is_closed_by_hand(
    run_cli, cluster: SlurmCluster, orphan: Path, tmp_path: Path
):
    number = record_in(tmp_path / "runs")["job"]
    cluster.run("scancel", number)
    until(lambda: "JobState=CANCELLED" in cluster.run("scontrol", "show", "job", number), "it is not cancelled")
    assert f"Slurm job {number}" in run_cli("show", str(orphan), "--json").stdout
    done = run_cli("env", "--finish", str(orphan))
    assert done.returncode == 0, done.stderr
    record = record_in(tmp_path / "runs")
    assert record["status"] == "failed"
    assert "cancelled, by scancel" in record["exit"]["reason"]
    assert "nonce" not in json.loads((orphan / "job/spec.json").read_text())


def test_a_probe_takes_hosts_and_names_the_first_as_the_one_compared_with(
    run_cli, cluster: SlurmCluster, tmp_path: Path
):
    done = run_cli("probe", "clock", *HOSTS, "--for", "1s", "--json", "--out", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["hosts"] == 2
    assert {(one["host"], one["against"]) for one in answer["offsets"]} == {("n2", "n1")}
