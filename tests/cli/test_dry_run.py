"""``--dry-run`` prints what would run, and nothing is started or written; the launcher is found where it is obvious."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

INSIDE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "PBS_")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("outside")
def test_a_dry_run_prints_a_script_and_writes_nothing(run_cli, tmp_path):
    out = tmp_path / "a 'place'"
    done = run_cli("train", "digits", "-n", "2", "--out", str(out), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:4] == ["exec", sys.executable, "-m", "allpull.observe.agent"]
    assert Path(words[4]).parts[-2:] == ("job", "spec.json")
    assert Path(words[4]).is_relative_to(out)
    assert "export OMP_NUM_THREADS=1" in done.stdout


@pytest.mark.usefixtures("outside")
def test_a_dry_run_for_slurm_is_a_batch_script(run_here, tmp_path):
    options = ("--launcher", "slurm", "--set", "launch.hosts=2", "--set", "slurm.account=phys", "--dry-run")
    done = run_here("train", "digits", "-n", "4", *options, "--set", 'slurm.modules=["gcc", "cuda"]', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n")
    assert "#SBATCH --account=phys\n#SBATCH --nodes=2\n" in done.stdout
    assert "module load gcc\nmodule load cuda\n" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("outside")
def test_inside_an_allocation_a_dry_run_is_an_srun(run_here, tmp_path):
    done = run_here("train", "digits", "-n", "4", "--dry-run", cwd=tmp_path, **INSIDE)
    assert done.returncode == 0, done.stderr
    assert "launcher slurm: inside Slurm job 12 on 2 hosts" in done.stderr
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:2] == ["exec", "srun"]
    assert {"--nodes=2", "--ntasks-per-node=1", "--nodelist=n[1-2]"} <= set(words)
    assert words[words.index("--master") + 1] == "n1"
    assert words[words.index("--port") + 1] == "20012"


@pytest.mark.usefixtures("outside")
def test_more_hosts_than_the_allocation_has_is_one_clear_error(run_here, tmp_path):
    options = ("--launcher", "slurm", "--set", "launch.hosts=4", "--dry-run")
    done = run_here("train", "digits", "-n", "4", *options, cwd=tmp_path, **INSIDE)
    assert done.returncode == 2
    assert "launch.hosts: 4 requested, and Slurm job 12 has 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("-n", "2", "--set", "launch.hosts=2"), "launcher local is this one host, not 2"),
        (("-n", "3", "--set", "launch.hosts=2"), "launch.ranks: 3 cannot be divided evenly over launch.hosts = 2"),
        (("--launcher", "mpi:/no/such/file"), "the host file /no/such/file"),
        (("--set", "container.binds=/data"), "container.image: no image was given"),
    ],
)
def test_what_cannot_run_is_said_before_it_is_tried(run_here, tmp_path, options, fault):
    if "mpi:" in options[-1] and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    done = run_here("train", "digits", *options, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert fault in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("outside")
def test_slurm_that_is_not_here_is_one_clear_error(run_here, tmp_path):
    (tmp_path / "bin").mkdir()
    done = run_here("train", "digits", "--launcher", "slurm", cwd=tmp_path, PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert "there is no sbatch on this machine" in done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "run.json").read_text())["status"] == "failed"


@pytest.mark.usefixtures("outside")
def test_a_prepared_run_has_a_script_to_submit_and_starts_nothing(run_here, tmp_path):
    options = ("--launcher", "slurm", "--set", "launch.hosts=2", "--out", str(tmp_path), "--prepare")
    done = run_here("train", "digits", "-n", "2", *options, cwd=tmp_path, PATH=os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    script = Path(done.stdout.strip())
    (directory,) = tmp_path.iterdir()
    assert script == directory / "job/script.sh"
    assert f"submit it from this folder: sbatch {script}" in done.stderr
    assert f"run={directory}\n" in script.read_text()
    assert (directory / "job/spec.json").exists()
    assert json.loads((directory / "run.json").read_text())["status"] == "created"


@pytest.mark.usefixtures("outside")
def test_a_command_of_the_users_can_be_prepared_too(run_cli, tmp_path):
    (tmp_path / "mine.py").touch()
    done = run_cli("run", "-n", "2", "--launcher", "slurm", "--prepare", "--", "mine.py", "--lr", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.strip()).parents[1]
    asked = json.loads((directory / "job/spec.json").read_text())
    assert asked["command"][-3:] == ["mine.py", "--lr", "1"]
    assert (directory / "job/hook/sitecustomize.py").exists()


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--launcher", "local"), "--prepare makes a batch script for sbatch, and the launcher is local"),
        (("--launcher", "slurm", "--dry-run"), "--dry-run writes nothing, and --prepare a run directory"),
        (("--launcher", "slurm", "--out", "a\\b"), "it has a backslash in it"),
    ],
)
def test_what_cannot_be_prepared_leaves_nothing(run_here, tmp_path, options, fault):
    for before, command in ((("train", "digits"), ()), (("run", "-n", "1"), ("--", "-m", "this"))):
        done = run_here(*before, "--prepare", *options, *command, cwd=tmp_path)
        assert done.returncode == 2
        assert fault in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("outside")
def test_more_ranks_than_memory_are_refused_before_one_is_started(run_cli, tmp_path):
    for launcher in ("local", "mpi"):
        done = run_cli("train", "digits", "-n", "60000", "--launcher", launcher, "--set", "data.limit=0", cwd=tmp_path)
        assert done.returncode == 2
        assert re.search(r"60,000 ranks need at least .* of memory on this host; .* are free", done.stderr), done.stderr
        assert not list(tmp_path.glob("runs/*/steps/*"))
