"""Directories that are not runs, or mean harm: one clear error, never a traceback, nothing read outside."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from allpull.errors import RunDirError
from allpull.rundir import layout, run_record, safe_open
from allpull.rundir.job_file import JobFile
from allpull.rundir.read.places import find_runs
from allpull.rundir.read.run import read_run
from allpull.rundir.tidy import close_directory

MakeRun = Callable[..., Path]


def test_missing_empty_and_half_written_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="nowhere: does not exist"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunDirError, match="not a run directory: it is empty"):
        read_run(tmp_path)
    (tmp_path / "steps").mkdir()
    with pytest.raises(RunDirError, match=r"it has no run\.json") as caught:
        read_run(tmp_path)
    assert "copy the whole directory" in caught.value.hint


@pytest.mark.parametrize("read", [read_run, find_runs])
def test_a_path_that_is_no_directory(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "file").write_text("{}")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path, says in (
        (tmp_path / "file", "not a directory"),
        (tmp_path / "a", "loop|symbolic links|Symlink"),
        (tmp_path / "nul\0", "null"),
        (tmp_path / ("x" * 300), "too long"),
    ):
        with pytest.raises(RunDirError, match=says):
            read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not readable as JSON"),
        (b'{"schema": "allpull.run/1.0", "id"', "not readable as JSON"),
        (b"\xff\xfe{}", "not readable as JSON"),
        (b'{"name": "\xff"}', "not readable as JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b"[]", "expected a JSON object"),
        (b"{}", "schema is None"),
        (b'{"schema": "allpull.run/2.0"}', "written by a newer allpull"),
        (b'{"schema": "allpull.run/1.0"}', "id: Field required; .*and [0-9]+ more"),
        (b'{"schema": "allpull.run/1.0", "seed": ' + b"9" * 40 + b"}", "a whole number of 40 digits"),
        (b'{"schema": "allpull.run/1.0", "seed": ' + b"9" * 9999 + b"}", "number out of range"),
        (b'{"schema": "allpull.run/1.0", "spec": {"a": [NaN]}}', "not readable as JSON"),
        (b" " * (run_record.MAX_BYTES + 1), "larger than 16 MiB"),
    ],
)
def test_a_run_json_that_cannot_be_used(make_run: MakeRun, content: bytes, says: str) -> None:
    root = make_run()
    (root / "run.json").write_bytes(content)
    with pytest.raises(RunDirError, match=rf"run/run\.json.*{says}") as caught:
        read_run(root)
    assert caught.value.hint
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    "changes", [{"ranks": 0}, {"ranks": 10**7}, {"ranks": "2"}, {"status": "odd"}, {"name": None}, {"spec": 3}]
)
def test_wrong_facts_in_run_json_are_named(make_run: MakeRun, changes: dict[str, Any]) -> None:
    root = make_run(**{key: value for key, value in changes.items() if key != "ranks"})
    if "ranks" in changes:
        record = json.loads((root / "run.json").read_text())
        (root / "run.json").write_text(json.dumps({**record, **changes}))
    with pytest.raises(RunDirError, match=rf"run\.json: {next(iter(changes))}: "):
        read_run(root)


@pytest.mark.parametrize("relative", ["run.json", layout.steps_file(0), layout.events_file(1), "hosts/here.json"])
def test_a_link_that_leaves_the_run_is_not_followed(make_run: MakeRun, tmp_path: Path, relative: str) -> None:
    root = make_run()
    outside = tmp_path / "outside"
    (root / relative).rename(outside)
    (root / relative).symlink_to(outside)
    with pytest.raises(RunDirError, match=rf"{relative}: a link that leaves the run directory"):
        read_run(root)


def test_a_linked_folder_that_leaves_the_run_is_not_listed(make_run: MakeRun, tmp_path: Path) -> None:
    root = make_run()
    (root / "steps").rename(tmp_path / "steps")
    (root / "steps").symlink_to(tmp_path / "steps")
    with pytest.raises(RunDirError, match="steps: a link that leaves the run directory"):
        read_run(root)


def test_links_within_the_run_and_to_the_run_are_fine(make_run: MakeRun, tmp_path: Path) -> None:
    root = make_run()
    (root / "steps").rename(root / "kept")
    (root / "steps").symlink_to("kept")
    (tmp_path / "latest").symlink_to(root)
    assert read_run(tmp_path / "latest").steps.height == 20


def test_pipes_and_folders_in_place_of_files_are_refused(make_run: MakeRun) -> None:
    root = make_run()
    (root / layout.steps_file(0)).unlink()
    os.mkfifo(root / layout.steps_file(0))  # opening one for reading would wait for ever
    with pytest.raises(RunDirError, match="not a regular file"):
        read_run(root)
    (root / layout.steps_file(0)).unlink()
    (root / layout.steps_file(0)).mkdir()
    with pytest.raises(RunDirError, match="not a regular file"):
        read_run(root)


def test_a_file_that_may_not_be_read(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run()
    really_open = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("rank-00001.jsonl"):
            raise PermissionError(13, "Permission denied")
        return really_open(path, flags, *rest, **more)

    monkeypatch.setattr(safe_open.os, "open", refuse)
    with pytest.raises(RunDirError, match=r"steps/rank-00001\.jsonl: no permission to read it"):
        read_run(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read(make_run: MakeRun) -> None:
    root = make_run()
    root.chmod(0)
    try:
        with pytest.raises(RunDirError, match="no permission"):
            read_run(root)
    finally:
        root.chmod(0o700)


def test_more_hosts_than_ranks_are_several_runs_mixed_up(make_run: MakeRun) -> None:
    root = make_run(ranks=1)
    for name in ("b", "c"):
        (root / f"counters/{name}.jsonl").write_text("garbage\n")
    with pytest.raises(RunDirError, match="3 hosts for 1 rank"):
        read_run(root)


def test_names_with_markup_and_escapes_survive_as_data(make_run: MakeRun) -> None:
    name = "\x1b[31m<script>\n'\"\u202e"
    assert read_run(make_run(name=name)).record.name == name


def test_a_path_that_is_not_utf8_can_be_said(make_run: MakeRun, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"run-\xff")
    try:
        make_run().rename(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert read_run(odd).steps.height == 20
    (odd / "run.json").unlink()
    with pytest.raises(RunDirError) as caught:
        read_run(odd)
    assert "run-\\xff" in caught.value.message.encode().decode()


@pytest.mark.parametrize("linked", [layout.JOB, layout.CHECKPOINTS, layout.LOGS])
def test_closing_a_run_removes_nothing_where_a_link_leads(make_run: MakeRun, tmp_path: Path, linked: str) -> None:
    root, outside = make_run(), tmp_path / "outside"
    (root / layout.LOGS).mkdir(parents=True, exist_ok=True)
    JobFile(directory=str(root)).write(str(root / layout.SPEC))
    (root / layout.CHECKPOINTS).mkdir()
    (root / linked).rename(outside)
    (root / linked).symlink_to(outside)
    for name in ("reserve", "secrets.json", "thesis.tmp", "empty.log"):
        (outside / name).touch()
    kept = sorted(outside.iterdir())
    with suppress(RunDirError):
        close_directory(root, run_record.read_record(root))
    assert sorted(outside.iterdir()) == kept
