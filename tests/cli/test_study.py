"""``allpull study audit`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allpull.cli import app
from allpull.errors import BadInput
from allpull.study.directory import open_directory
from allpull.study.file import load_study, with_limit
from allpull.study.points import points_of

HEADER = "series,gpus,batch_per_gpu,images_per_sec,speedup,efficiency,train_time_s,notes\n"


def test_the_published_measurements_are_audited_and_slips_have_an_exit_code() -> None:
    shown = CliRunner().invoke(app, ["study", "audit", "--published"])
    assert shown.exit_code == 3
    assert "hal_feb" in shown.output
    assert "57.0% by training time" in " ".join(shown.output.split())


def test_a_clean_table_ends_with_zero_and_json(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + "s,1,64,100,1.0,,,\ns,2,64,190,1.9,,,\n")
    shown = CliRunner().invoke(app, ["study", "audit", str(tmp_path / "t.csv"), "--json"])
    assert shown.exit_code == 0
    result = json.loads(shown.stdout)
    assert (result["rows"], result["findings"]) == (2, [])


def test_without_a_table_the_error_says_what_to_give() -> None:
    shown = CliRunner().invoke(app, ["study", "audit"])
    assert shown.exit_code == 2
    assert "--published" in shown.output


STUDY = """
[study]
name = "mine"
timeout = "1 h"
[run]
command = ["train.py", "{batch}"]
[axes]
ranks = [1]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one study file, and nothing measured."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(STUDY + "batch = [32]\n")
    return tmp_path


def error_of(*words: str) -> str:
    """What ``allpull study`` says of a call that it refuses, on one line."""
    shown = CliRunner().invoke(app, ["study", *words])
    assert shown.exit_code == 2
    return " ".join(shown.output.split())


@pytest.mark.usefixtures("folder")
def test_a_study_that_was_not_measured_names_those_that_were() -> None:
    for place in ("mine", "mine.toml", "."):
        assert "nothing has been measured" in error_of("show", place)
    _measured(Path("studies/other"))
    assert "studies here: studies/other" in error_of("show", "mine")


@pytest.mark.usefixtures("folder")
def test_a_study_is_shown_by_its_directory_its_name_and_its_file() -> None:
    _measured(Path("studies/mine"))
    for place in ("studies/mine", "mine", "mine.toml"):
        shown = CliRunner().invoke(app, ["study", "show", place])
        assert shown.exit_code == 0, shown.output
        assert "1 of 1 point" in shown.output


@pytest.mark.usefixtures("folder")
def test_a_folder_that_is_no_study_and_one_named_like_a_shipped_study_are_told_apart() -> None:
    Path("empty").mkdir()
    assert "the folder empty holds no study" in error_of("plan", "empty")
    _measured(Path("hal"))
    assert "for the shipped study of that name" in error_of("plan", "hal", "--fit-here")


def test_the_limit_of_a_call_may_be_shorter_than_the_timeout_of_a_run(folder: Path) -> None:
    study = with_limit(load_study(str(folder / "mine.toml")), "30 min")
    assert study.settings.limit_s == 1800
    with pytest.raises(BadInput):
        with_limit(study, "0 s")


def test_faults_of_a_command_name_its_own_placeholders(folder: Path) -> None:
    (folder / "mine.toml").write_text(STUDY + "batch = []\n")
    assert "found an empty list" in error_of("plan", "mine.toml")
    (folder / "mine.toml").write_text(STUDY + "batch = [1]\noptimizer = ['sgd']\n")
    refused = error_of("plan", "mine.toml")
    assert "it has {batch}; parameters of every study: ranks, hosts, launcher, threads, env.NAME" in refused


@pytest.mark.usefixtures("folder")
def test_a_plan_says_what_bounds_a_command_without_steps() -> None:
    shown = CliRunner().invoke(app, ["study", "plan", "mine.toml"])
    assert "what bounds its time: study.timeout = '1 h'" in " ".join(shown.output.split())


def _measured(directory: Path) -> None:
    study = load_study("mine.toml")
    directory.parent.mkdir(exist_ok=True)
    open_directory(study, points_of(study), directory)
