"""Runs by what people call them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from allpull.errors import RunDirError
from allpull.rundir.read.places import find_runs

IDS = ("20260101T000000Z_digits_n1_aaaa1111", "20260102T000000Z_digits_n2_bbbb2222", "20260102T000001Z_big_n2_bbbb3333")


@pytest.fixture
def runs(make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ``runs`` with three runs, seen from the folder above."""
    made = make_run(1, 2, name="digits")
    folder = tmp_path / "here/runs"
    for run_id in IDS:
        target = folder / run_id
        target.mkdir(parents=True)
        text = (made / "run.json").read_text()
        (target / "run.json").write_text(text.replace('"digits"', '"wide"') if "big" in run_id else text)
    monkeypatch.chdir(folder.parent)
    return folder


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("latest", 2),
        ("runs/latest", 2),
        ("20260101", 0),
        ("bbbb2", 1),
        ("wide", 2),
        (IDS[1], 1),
        (f"runs/{IDS[1]}", 1),
    ],
)
def test_a_run_is_found_by_what_it_is_called(runs: Path, name: str, place: int) -> None:
    (found,) = find_runs(Path(name))
    assert found.resolve() == runs / IDS[place]


def test_several_runs_of_one_name_are_listed_and_none_is_chosen(runs: Path) -> None:
    with pytest.raises(RunDirError, match="2 runs are called so: 20260102T000000Z_digits_n2_bbbb2222") as error:
        find_runs(Path("bbbb"))
    assert "latest" in error.value.hint
    with pytest.raises(RunDirError, match="2 runs are called so"):
        find_runs(Path("digits"))


def test_a_name_that_fits_no_run_is_an_error_that_says_where_runs_are_listed(runs: Path) -> None:
    with pytest.raises(RunDirError, match="no run in runs is called so") as error:
        find_runs(Path("nothing"))
    assert error.value.hint == "allpull ls runs lists the runs"
    with pytest.raises(RunDirError, match="no such file or directory"):
        find_runs(Path("elsewhere/latest"))


def test_a_link_is_no_run(runs: Path, tmp_path: Path) -> None:
    (runs / "20270101T000000Z_link_n1_cccc").symlink_to(runs / IDS[0])
    (found,) = find_runs(Path("latest"))
    assert found.name == IDS[2]
