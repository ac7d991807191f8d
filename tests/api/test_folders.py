"""Folders that hold more than whole runs: damaged ones, foreign files, links, studies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from allpull.api.listing import list_runs
from allpull.api.runs import readable_runs
from allpull.api.shown import shown
from allpull.api.side_by_side import side_by_side
from allpull.errors import RunDirError

RUNS = Path(__file__).resolve().parents[1] / "runs"
RUN = "20260101T000000Z_digits_n2_a"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder ``runs`` with one run, and what people and other programs leave there."""
    made = tmp_path / "project/runs"
    run = Path(shutil.copytree(RUNS / "v1.3", made / RUN))
    for name, text in (("cut", "{"), ("foreign", '{"a": 1}'), ("blank", "")):
        (made / name).mkdir()
        (made / name / "run.json").write_text(text)
    (made / "empty").mkdir()
    (made / "notes.txt").write_text("mine")
    (made / "link").symlink_to(run)
    (made / "nowhere").symlink_to(tmp_path / "nowhere")
    return made


def test_damaged_runs_of_a_folder_are_a_line_each_and_the_others_are_shown(folder: Path) -> None:
    result = side_by_side(shown([folder]))
    assert len(result.runs) == 1
    assert [Path(line.partition(":")[0]).parent.name for line in result.damaged] == ["blank", "cut", "foreign"]


def test_a_damaged_run_that_is_named_itself_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunDirError, match=r"cut/run\.json"):
        readable_runs([folder / RUN, folder / "cut"])
    monkeypatch.chdir(folder.parent)
    with pytest.raises(RunDirError, match=r"cut/run\.json"):
        readable_runs([Path("cut")])
    shutil.rmtree(folder / RUN)
    with pytest.raises(RunDirError, match=r"blank/run\.json"):  # nothing is left to show
        readable_runs([folder])


@pytest.mark.parametrize("place", ["", "runs", "runs/latest", "latest", "runs/link"])
def test_a_project_its_folder_of_runs_and_its_latest_run_are_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """``latest`` is no directory without a record, whatever its name; a link that is named is followed."""
    monkeypatch.chdir(folder.parent)
    assert [run.directory for run in readable_runs([Path(place)])[0]] == [folder / RUN]


def test_a_study_lists_its_runs_and_a_folder_of_studies_names_one(folder: Path) -> None:
    assert len(list_runs([folder.parent]).runs) == 1
    with pytest.raises(RunDirError) as error:
        list_runs([folder.parents[1]])
    assert "project" in error.value.hint
