"""A run that has ended has few files: on a cluster, they are as scarce as bytes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from allpull.observe.hook_install import install_hook
from allpull.rundir import layout
from allpull.rundir.read.processes import boot_id
from allpull.rundir.run_record import read_record
from allpull.rundir.tidy import tidy

KEPT = Path(__file__).parents[1] / "runs/v1.5"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A kept run with the files that a job has while it runs."""
    root = Path(shutil.copytree(KEPT, tmp_path / "run"))
    install_hook(str(root))
    (root / layout.LIVE).mkdir(parents=True, exist_ok=True)
    (root / layout.live_file(0)).touch()
    (root / layout.LOGS).mkdir(parents=True, exist_ok=True)
    (root / layout.LOGS / "empty.log").touch()
    (root / layout.LOGS / "full.log").write_text("a line\n")
    return root


def test_a_completed_run_keeps_neither_hook_nor_live_files_nor_empty_logs(run):
    tidy(run, read_record(run))
    assert not (run / layout.HOOK).exists()
    assert not (run / layout.LIVE).exists()
    assert [log.name for log in (run / layout.LOGS).glob("*.log")] == ["full.log"]


def _enter(run: Path, pid: int, **told: object) -> Path:
    entry = run / layout.process_file("node", pid)
    entry.parent.mkdir(parents=True, exist_ok=True)
    fields = {"pid": pid, "host": "node", "rank": None, "argv": ["train.py"], "reason": None, "refused_rank": None}
    entry.write_text(json.dumps({**fields, **told}))
    return entry


def test_a_completed_run_keeps_no_entry_of_its_ranks_processes(run):
    _enter(run, 7, rank=0)
    _enter(run, 8, rank=1)
    _enter(run, 9, reason="it never trained")
    tidy(run, read_record(run))
    assert not (run / layout.PROCESSES).exists()


def test_entries_stay_where_a_process_was_left_out_and_where_no_rank_recorded(run):
    told = _enter(run, 7, rank=0)
    left_out = _enter(run, 8, refused_rank=0)
    tidy(run, read_record(run))
    assert told.exists()
    assert left_out.exists()
    left_out.unlink()
    shutil.rmtree(run / "steps")
    tidy(run, read_record(run))
    assert told.exists()


def test_a_failed_run_keeps_what_its_ranks_did_last(run):
    tidy(run, read_record(run).model_copy(update={"status": "failed"}))
    assert not (run / layout.HOOK).exists()
    assert (run / layout.live_file(0)).exists()


def test_a_rank_that_outlives_its_job_keeps_the_hook_that_it_may_import_from(run):
    steps = run / layout.steps_file(0)
    first, _, others = steps.read_text().partition("\n")
    header = {**json.loads(first), "pid": os.getpid(), "boot_id": boot_id()}
    steps.write_text(json.dumps(header) + "\n" + others)
    tidy(run, read_record(run))
    assert (run / layout.HOOK / "sitecustomize.py").exists()


@pytest.mark.slow
@pytest.mark.ranks
def test_two_ranks_leave_fewer_than_fifteen_files(run_cli, tmp_path):
    loop = "import torch, torch.distributed as d; d.init_process_group('gloo'); w = torch.ones(2, requires_grad=True)\n"
    loop += "o = torch.optim.SGD([w], 0.1)\nfor _ in range(8): o.zero_grad(); w.sum().backward(); o.step()\n"
    (tmp_path / "loop.py").write_text(loop)
    assert run_cli("run", "-n", "2", "--", "loop.py", cwd=tmp_path).returncode == 0
    assert run_cli("train", "digits", "-n", "2", "--set", "train.epochs=1", cwd=tmp_path).returncode == 0
    for one in (tmp_path / "runs").iterdir():
        files = [file for file in one.rglob("*") if file.is_file()]
        assert len(files) < 15, sorted(map(str, files))
