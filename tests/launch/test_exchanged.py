"""Another user exchanges a run directory while it is made: nothing is written into another folder of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allpull.api import listing
from allpull.errors import BadInput
from allpull.launch import job as making
from allpull.rundir import layout
from allpull.rundir import tidy as closing
from allpull.rundir.run_record import write_record
from allpull.schema.run import RunRecord
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


@pytest.mark.parametrize("moment", ["allpull.rundir.tidy.close_record", "allpull.rundir.tidy.tidy"])
def test_a_directory_that_is_exchanged_while_the_run_is_closed(moment: str, tmp_path, monkeypatch) -> None:
    """Another run of ours is put in its place: it keeps its record, its secrets and its hook."""
    mine, job = prepared(tmp_path / "mine").directory, prepared(tmp_path / "runs")
    for directory in (mine, job.directory):
        (directory / layout.HOOK).mkdir(exist_ok=True)
        (directory / layout.SECRETS).write_text("precious")
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    go_on = getattr(closing, moment.rpartition(".")[2])

    def exchange(directory: Path, record: RunRecord) -> None:
        job.directory.rename(tmp_path / "taken")
        job.directory.symlink_to(mine)
        go_on(directory, record)

    monkeypatch.setattr(moment, exchange)
    record = job.record.model_copy(update={"status": "completed"})
    closing.close_directory(job.directory, record)
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before
    assert (mine / layout.HOOK).is_dir()
    assert json.loads((tmp_path / "taken/run.json").read_text())["status"] == "completed"
    assert not (tmp_path / "taken" / layout.SECRETS).exists()
    assert not (tmp_path / "taken" / layout.HOOK).exists()


def test_a_directory_that_is_exchanged_while_its_run_is_renamed(tmp_path, monkeypatch) -> None:
    mine, job = prepared(tmp_path / "mine").directory, prepared(tmp_path / "runs")
    write_record(job.directory, job.record.model_copy(update={"status": "completed"}))
    before = (mine / "run.json").read_bytes()

    def exchange(directory: Path, record: RunRecord) -> None:
        job.directory.rename(tmp_path / "taken")
        job.directory.symlink_to(mine)
        write_record(directory, record)

    monkeypatch.setattr(listing, "write_record", exchange)
    listing.rename(job.directory, "better")
    assert (mine / "run.json").read_bytes() == before
    assert json.loads((tmp_path / "taken/run.json").read_text())["name"] == "better"
