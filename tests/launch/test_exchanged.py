"""Another user exchanges a run directory while it is made: nothing is written into another folder of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allpull.errors import BadInput
from allpull.launch import job as making
from allpull.schema.spec import RunSpec


def prepared(out: Path) -> making.Job:
    return making.prepare(RunSpec(), kind="run", program=["true"], command=["allpull"], out=out)


def test_a_directory_that_is_exchanged_while_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    (mine / "job").mkdir(parents=True)
    for name in ("run.json", "job/spec.json", "job/reserve"):
        (mine / name).write_text("precious")
    write = making.write_record

    def exchange(directory: Path, record: object) -> None:
        (place,) = (tmp_path / "runs").iterdir()
        place.rename(tmp_path / "taken")
        place.symlink_to(mine)
        write(directory, record)

    monkeypatch.setattr(making, "write_record", exchange)
    prepared(tmp_path / "runs")
    assert {path.read_text() for path in mine.rglob("*") if path.is_file()} == {"precious"}
    assert json.loads((tmp_path / "taken/run.json").read_text())["status"] == "created"
    assert (tmp_path / "taken/job/spec.json").exists()


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_a_directory_that_is_exchanged_before_it_is_filled(kind: str, tmp_path, monkeypatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "run.json").write_text("precious")
    fresh = making._fresh

    def exchange(out: Path, name: str) -> Path:
        place = fresh(out, name)
        place.rmdir()
        if kind == "link":
            place.symlink_to(mine)
        else:
            mine.rename(place)
        return place

    monkeypatch.setattr(making, "_fresh", exchange)
    with pytest.raises(BadInput):
        prepared(tmp_path / "runs")
    (kept,) = tmp_path.rglob("run.json")
    assert kept.read_text() == "precious"
    assert [path.name for path in kept.parent.iterdir()] == ["run.json"]
