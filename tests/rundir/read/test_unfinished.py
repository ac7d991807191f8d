"""A run that nobody closed: readers know when its processes are gone, and say so only then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allpull.rundir import layout
from allpull.rundir.read.processes import boot_id
from allpull.rundir.read.run import read_run
from allpull.rundir.read.unfinished import SILENT_S

KEPT = Path(__file__).parents[2] / "runs/v1.5"
GONE = "no process of its ranks runs any more"
pytestmark = pytest.mark.skipif(boot_id() is None, reason="needs Linux's /proc")


def unclosed(tmp_path: Path, *, pid: int, boot: str | None, silent_s: float) -> str:
    """The sentence on a run whose rank 1 was process ``pid``, and whose rank 0 has certainly ended."""
    shutil.copytree(KEPT, tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    record |= {"status": "running", "exit": None, "launcher": "local"}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    shutil.rmtree(tmp_path / "run" / layout.ENDED, ignore_errors=True)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    for rank, number in ((0, ended.pid), (1, pid or ended.pid)):
        path = tmp_path / "run" / layout.steps_file(rank)
        first, _, others = path.read_text().partition("\n")
        path.write_text(json.dumps({**json.loads(first), "pid": number, "boot_id": boot}) + "\n" + others)
        then = path.stat().st_mtime - silent_s
        os.utime(path, (then, then))
    (gap,) = [gap for gap in read_run(tmp_path / "run").gaps if gap.kind == "unfinished"]
    return gap.text


def test_a_job_that_was_killed_with_its_launcher_has_ended(tmp_path: Path) -> None:
    assert GONE in unclosed(tmp_path, pid=0, boot=boot_id(), silent_s=2 * SILENT_S)


@pytest.mark.parametrize(
    ("pid", "boot", "silent_s"),
    [
        pytest.param(os.getpid(), boot_id(), 2 * SILENT_S, id="one runs"),
        pytest.param(0, boot_id(), 0, id="in a container it has another number"),
        pytest.param(0, "another machine's", 2 * SILENT_S, id="elsewhere"),
        pytest.param(0, None, 2 * SILENT_S, id="unknown"),
    ],
)
def test_what_may_still_run_is_not_called_ended(tmp_path: Path, pid: int, boot: str | None, silent_s: float) -> None:
    assert GONE not in unclosed(tmp_path, pid=pid, boot=boot, silent_s=silent_s)
