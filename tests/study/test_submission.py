"""Jobs of a study under Slurm: which are submitted, in which chains, and what ends those that have measured enough."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.study.file import StudyFile, load_study
from allpull.study.length import Enough
from allpull.study.points import points_of
from allpull.study.submission import Submitted, submit_study
from allpull.study.submitted import end_when_enough

pytestmark = pytest.mark.torch

KEPT = Path(__file__).parents[1] / "runs" / "v1.6"
STUDY = """
[study]
name = "queued"
{settings}
[run]
command = ["train.py", "{{size}}"{more}]
[axes]
ranks = [1, 2]
size = [8, 16]
"""
SBATCH = """#!/bin/sh
number=$(ls "$SUBMITTED" | wc -l)
cat > "$SUBMITTED/$number.sh"
echo "$number"
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the scripts that an sbatch of ours was given, by the numbers that it answered."""
    programs, scripts = tmp_path / "bin", tmp_path / "queue"
    programs.mkdir()
    scripts.mkdir()
    (programs / "sbatch").write_text(SBATCH)
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("SUBMITTED", str(scripts))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return scripts


def study_of(folder: Path, settings: str = "", more: str = "") -> StudyFile:
    path = folder / "study.toml"
    path.write_text(STUDY.format(settings=settings, more=more), encoding="utf-8")
    return load_study(str(path))


def submit(study: StudyFile, folder: Path, at_once: int = 1) -> list[Submitted]:
    return submit_study(study, points_of(study), folder / "out", at_once=at_once, notify=lambda _: None)


def after(script: Path) -> list[str]:
    lines = script.read_text().splitlines()
    return [line.rpartition(":")[2] for line in lines if line.startswith("#SBATCH --dependency=afterany:")]


def test_jobs_go_in_chains_and_none_is_submitted_twice(tmp_path: Path, queue: Path) -> None:
    jobs = submit(study_of(tmp_path), tmp_path, at_once=2)
    assert [job.number for job in jobs] == ["0", "1", "2", "3"]
    assert [after(queue / f"{number}.sh") for number in range(4)] == [[], [], ["0"], ["1"]]
    assert submit(study_of(tmp_path), tmp_path) == []
    assert json.loads((jobs[0].directory / layout.RUN_JSON).read_text())["point"] == f"{jobs[0].point.id}/0"


@pytest.mark.parametrize(
    ("settings", "more", "is_watched"),
    [
        ("", "", False),
        ("steps = 20", "", True),
        ("steps = 20", ', "{steps}"', False),
        ("run_half_width = 0.1", "", True),
    ],
)
def test_a_job_whose_program_does_not_end_it_is_watched(
    tmp_path: Path, queue: Path, settings: str, more: str, *, is_watched: bool
) -> None:
    submit(study_of(tmp_path, settings, more), tmp_path)
    text = (queue / "0.sh").read_text()
    assert (f'{sys.executable} -m allpull.study.submitted "$run" &' in text) == is_watched


def test_what_is_decided_after_each_run_cannot_be_submitted(tmp_path: Path, queue: Path) -> None:
    with pytest.raises(BadInput, match=r"study\.half_width decides after each run"):
        submit(study_of(tmp_path, "repeats = 3\nhalf_width = 0.1"), tmp_path)
    assert not list(queue.iterdir())


def test_a_watched_job_is_ended_once_it_has_its_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(KEPT, run)
    made = [path.read_text().splitlines() for path in sorted((run / "steps").iterdir())]
    steps = min(json.loads(lines[-1])["step"] + 1 for lines in made)
    cut = next((run / "steps").iterdir())
    whole = cut.read_text()
    cut.write_text("\n".join(whole.splitlines()[:3]) + "\n")
    looks, told = [], []
    enough = Enough(study_of(tmp_path, f"steps = {steps}"))
    original = enough.look

    def look(directory: Path) -> object:
        looks.append(directory)
        if len(looks) == 3:
            cut.write_text(whole)
        return original(directory)

    enough.look = look  # type: ignore[method-assign,assignment]  # it counts
    end_when_enough(run, enough, lambda: told.append((run / layout.ENOUGH).read_text()), every_s=0.0)
    assert len(looks) == 3
    assert told == [f"ended by its study after study.steps = {steps}"]  # written before the job is ended
