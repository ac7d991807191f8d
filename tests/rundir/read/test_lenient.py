"""Pieces of files are read as far as they make sense, at most so many bytes, and never through a link that leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allpull.rundir.read.lenient import MAX_BYTES, file_names, first_record, json_object, last_records, log_tail


def test_the_last_records_are_whole_lines_of_the_last_bytes(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step}) for step in range(20_000)]
    (tmp_path / "log").write_text("\n".join([*lines, "[1]", "{}", '{"step": ']))
    records = last_records(tmp_path, "log")
    steps = [record["step"] for record in records]
    assert steps == list(range(steps[0], 20_000))
    assert 0.9 * MAX_BYTES < sum(len(lines[step]) + 1 for step in steps) <= MAX_BYTES
    assert len(last_records(tmp_path, "log", 1000)) < 100 < len(steps)


def test_a_log_tail_is_bounded_and_masked(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100_000 + b"\n" + b"\xff\n" * 30 + b"HF_TOKEN=abc\n")
    tail = log_tail(tmp_path, "log")
    assert len(tail) == 20
    assert tail[-1] == "HF_TOKEN=[redacted]"


@pytest.mark.parametrize("content", [None, b"", b"[1]\n", b"[" * 100_000, b'{"a": 1' + b" " * MAX_BYTES + b"}", "link"])
def test_what_cannot_be_read_is_empty(tmp_path: Path, content: bytes | str | None) -> None:
    root = tmp_path / "run"
    root.mkdir()
    if isinstance(content, bytes):
        (root / "x").write_bytes(content)
    elif content:
        (tmp_path / "outside").write_bytes(b'{"a": 1}\n')
        (root / "x").symlink_to(tmp_path / "outside")
    assert (json_object(root, "x"), first_record(root, "x"), last_records(root, "x")) == ({}, {}, [])
    assert file_names(root, "x", "") == []
    assert log_tail(root, "x") == () or isinstance(content, bytes)
