"""The directory of a study may come from anybody: nothing waits, nothing outside changes, no secret is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from allpull.errors import BadInput, RunDirError
from allpull.schema.tuned import Trial
from allpull.study.directory import (
    ATTEMPTS,
    LOCK,
    STUDY_TOML,
    add_attempt,
    kept_study,
    locked,
    open_directory,
    read_attempts,
)
from allpull.study.file import StudyFile, load_study
from allpull.study.point_run import attempt_of
from allpull.study.points import points_of
from allpull.study.tune.trial_log import FILE, append_trial, read_trials

SECRET = """
[study]
name = "secret"
[run]
command = ["train.py", "--token", "Sw0rdfish", "--size", "{size}"]
env = { HF_TOKEN = "Sw0rdfish", MODE = "fast" }
[axes]
size = [8, 16]
"""


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    (tmp_path / "secret.toml").write_text(SECRET, encoding="utf-8")
    return load_study(str(tmp_path / "secret.toml"))


def test_a_directory_keeps_no_secret_and_goes_on_with_the_file_alone(tmp_path: Path, study: StudyFile) -> None:
    for _ in range(2):  # the second time it is compared with what was kept
        open_directory(study, points_of(study), tmp_path / "kept")
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and b"Sw0rd" in path.read_bytes()]
    assert 'MODE = "fast"' in (tmp_path / "kept" / STUDY_TOML).read_text()
    with pytest.raises(BadInput, match="has its secrets masked"):
        kept_study(tmp_path / "kept")


@pytest.mark.parametrize("name", [ATTEMPTS, STUDY_TOML, FILE])
def test_pipes_and_links_in_a_study_are_not_read(tmp_path: Path, study: StudyFile, name: str) -> None:
    open_directory(study, points_of(study), tmp_path / "kept")
    read = {ATTEMPTS: read_attempts, STUDY_TOML: kept_study, FILE: read_trials}[name]
    for plant in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (tmp_path / "kept" / name).unlink(missing_ok=True)
        plant(tmp_path / "kept" / name)
        with pytest.raises(RunDirError, match=r"not a regular file|leaves the run directory"):
            read(tmp_path / "kept")


@pytest.mark.parametrize("name", [LOCK, ATTEMPTS, FILE])
def test_links_planted_in_a_study_change_no_file_of_the_user(tmp_path: Path, study: StudyFile, name: str) -> None:
    open_directory(study, points := points_of(study), tmp_path / "kept")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "kept" / name).symlink_to(tmp_path / "mine")
    write: dict[str, Callable[[Path], object]] = {
        LOCK: lambda directory: ExitStack().enter_context(locked(directory)),
        ATTEMPTS: lambda directory: add_attempt(directory, attempt_of(points[0], 0, "failed", seconds=1.0)),
        FILE: lambda directory: append_trial(directory, Trial.model_construct()),
    }
    with pytest.raises(OSError, match="symbolic links"):
        write[name](tmp_path / "kept")
    assert (tmp_path / "mine").read_text() == "mine"
