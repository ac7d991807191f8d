"""Runs listed, renamed and removed, of a real folder of run directories."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from allpull.api.listing import list_runs, remove, rename
from allpull.errors import BadInput
from allpull.report.terminal.listing import listing
from allpull.schema.results import ListResult

KEPT = Path(__file__).parents[1] / "runs" / "v1.6"


def written(folder: Path, run_id: str, **changes: object) -> Path:
    """A run directory with a ``run.json``."""
    record = {
        "schema": "allpull.run/1.0",
        "id": run_id,
        "name": "digits",
        "kind": "train",
        "created_utc": "2026-01-01T00:00:00Z",
        "ended_utc": "2026-01-01T00:01:30Z",
        "status": "completed",
        "command": ["allpull", "train", "digits"],
        "spec": {},
        "launcher": "local",
        "ranks": 2,
        "versions": {},
        **changes,
    }
    directory = folder / run_id
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(record))
    return directory


@pytest.mark.slow
def test_runs_are_listed_the_latest_first_and_a_damaged_one_is_named(run_here, tmp_path: Path) -> None:
    written(tmp_path / "runs", "20260101T000000Z_digits_n2_a")
    written(tmp_path / "runs", "20260102T000000Z_a_n2_b", kind="run", command=["allpull", "run", "a.py"], name="first")
    (written(tmp_path / "runs", "20260103T000000Z_c_n2_c") / "run.json").write_text("{")
    listed = json.loads(run_here("ls", "--json", cwd=tmp_path).stdout)
    assert [(run["name"], run["program"], run["ranks"], run["seconds"]) for run in listed["runs"]] == [
        ("first", "a.py", 2, 90.0),
        ("digits", "digits", 2, 90.0),
    ]
    assert len(listed["damaged"]) == 1
    shown = run_here("ls", cwd=tmp_path).stdout
    assert shown.index("20260102T000000Z") < shown.index("20260101T000000Z")
    assert "Not readable:" in shown


@pytest.mark.parametrize(("set_by_s", "is_known"), [(0, True), (-3600, False), (86400, False)])
def test_how_long_a_run_took_is_not_known_where_the_clock_was_set(
    tmp_path: Path, set_by_s: int, is_known: bool
) -> None:
    """Its end less its begin would be a time of −3,592 s, or of a day, for a run of 8 s."""
    shutil.copytree(KEPT, tmp_path / "runs" / KEPT.name)
    before = list_runs([tmp_path / "runs"]).runs[0].seconds
    for path in (tmp_path / "runs" / KEPT.name / "events").iterdir():
        *lines, last = path.read_text().splitlines()
        pair = json.loads(next(line for line in lines if '"kind": "clock"' in line))
        later = json.dumps({**pair, "realtime_ns": pair["realtime_ns"] + set_by_s * 10**9})
        path.write_text("\n".join([*lines, later, last]) + "\n")
    after = list_runs([tmp_path / "runs"]).runs[0].seconds
    assert before is not None
    assert after == (before if is_known else None)


def test_an_end_before_the_begin_is_no_duration(tmp_path: Path) -> None:
    written(tmp_path, "20260101T000000Z_digits_n2_a", ended_utc="2025-12-31T23:00:00Z")
    assert list_runs([tmp_path]).runs[0].seconds is None


def test_a_run_is_renamed_and_found_by_its_new_name(run_here, tmp_path: Path) -> None:
    directory = written(tmp_path / "runs", "20260101T000000Z_digits_n2_a")
    assert run_here("rename", "latest", "base line", cwd=tmp_path).returncode == 0
    assert json.loads((directory / "run.json").read_text())["name"] == "base line"
    assert json.loads(run_here("show", "base line", "--json", cwd=tmp_path).stdout)["runs"][0]["name"] == "base line"
    assert run_here("rename", "latest", " ", cwd=tmp_path).returncode == 2


@pytest.mark.slow
def test_nothing_is_removed_unasked_or_while_a_job_runs(run_cli, tmp_path: Path) -> None:
    done = written(tmp_path / "runs", "20260101T000000Z_digits_n2_a")
    going = written(tmp_path / "runs", "20260102T000000Z_digits_n2_b", status="running")
    (tmp_path / "precious").write_text("kept")
    (done / "link").symlink_to(tmp_path / "precious")
    assert run_cli("rm", "20260101", cwd=tmp_path).returncode == 2
    refused = run_cli("rm", "runs", "--yes", cwd=tmp_path)
    assert refused.returncode == 2
    assert "has not ended" in refused.stderr
    assert done.exists()
    assert run_cli("rm", "20260101", "--yes", cwd=tmp_path).returncode == 0
    assert not done.exists()
    assert going.exists()
    assert (tmp_path / "precious").read_text() == "kept"
    assert run_cli("rm", "20260102", "--yes", "--force", cwd=tmp_path).returncode == 0
    assert not going.exists()


def test_a_link_to_a_run_is_not_removed_nor_is_another_run_with_it(tmp_path: Path) -> None:
    runs = [written(tmp_path, f"2026010{day}T000000Z_digits_n2_a") for day in (1, 2)]
    link = tmp_path / "link"
    link.symlink_to(runs[1])
    with pytest.raises(BadInput, match="link is a link"):
        remove([runs[0], link])
    assert all((run / "run.json").is_file() for run in (*runs, link))


def test_a_run_that_has_not_ended_says_for_how_long_it_has_been_silent(tmp_path: Path) -> None:
    directory = written(tmp_path, "20260101T000000Z_digits_n2_a", status="running", ended_utc=None)
    (directory / "steps").mkdir()
    for path in (directory / "run.json", directory / "steps"):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    (run,) = list_runs([directory]).runs
    assert run.silent_s == pytest.approx(7200, abs=60)
    assert "running, silent for 2 h" in shown(list_runs([directory]))
    (ended,) = list_runs([written(tmp_path / "other", "20260102T000000Z_digits_n2_b")]).runs
    assert ended.silent_s is None


def test_a_narrow_terminal_loses_columns_before_it_breaks_a_line(tmp_path: Path) -> None:
    written(tmp_path, "20260101T000000Z_digits_n2_a", created_utc="2026-01-02T00:00:00Z")  # its clock was set back
    lines = shown(list_runs([tmp_path]), width=66).splitlines()
    assert len(lines) == 3
    assert "program" not in lines[0]
    assert " -" not in lines[2]


def shown(result: ListResult, width: int = 200) -> str:
    """What ``allpull ls`` prints."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(listing(result))
    return console.export_text()


@pytest.mark.parametrize("name", ["", "x" * 201, "a/b", "a/..", "latest", ".."])
def test_a_name_must_be_one_that_finds_the_run(tmp_path: Path, name: str) -> None:
    directory = written(tmp_path, "20260101T000000Z_digits_n2_a")
    with pytest.raises(BadInput, match="cannot be called"):
        rename(directory, name)
