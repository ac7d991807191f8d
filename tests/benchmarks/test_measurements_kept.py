"""What ``--keep`` of a benchmark remembers is used again for the same question alone: setting, source and machine."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ASKED = {"model": "resnet18", "batch": 8, "device": "cpu"}


@pytest.fixture(scope="module")
def stored() -> Any:
    """The module that keeps them."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    try:
        return import_module("stored")
    finally:
        sys.path[:] = before


@pytest.mark.parametrize(
    ("asked", "here", "differs"),
    [
        ({"batch": 512}, {}, r"asked\.batch was 8, is 512"),
        ({"model": "resnet50"}, {}, r'asked\.model was "resnet18", is "resnet50"'),
        ({"device": "NVIDIA H200"}, {}, r'asked\.device was "cpu", is "NVIDIA H200"'),
        ({"more": None}, {}, r"asked\.more was None, is null"),
        ({}, {"commit": "another"}, r'commit was "[0-9a-f]*", is "another"'),
        ({}, {"dirty": None}, r"dirty was \w+, is null"),
        ({}, {"machine": {"cpu": "another"}}, r'machine\.cpu was .*, is "another"'),
        ({}, {"versions": {"torch": "1.0"}}, r'versions\.torch was .*, is "1\.0"'),
    ],
)
def test_rates_of_something_else_are_refused_and_left_as_they_are(
    stored: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: Any, here: Any, differs: str
) -> None:
    path = tmp_path / "rates.jsonl"
    stored.Kept(path, ASKED)("one", lambda: "1.0")
    before, now = path.read_text(), {**stored._here(), **here}
    monkeypatch.setattr(stored, "_here", lambda: now)
    with pytest.raises(SystemExit, match=f"begun for something else: .*{differs}.*name another file"):
        stored.Kept(path, {**ASKED, **asked})
    assert path.read_text() == before


@pytest.mark.parametrize("text", ['["one", "1.0"]\n', "{}\n[1]\n", "{}\n3\n", '{}\n["one", "1', "\n", "\x00"])
def test_a_file_that_does_not_say_what_it_is_of_is_refused(stored: Any, tmp_path: Path, text: str) -> None:
    """The first is one whose answers say nothing of what they were measured of."""
    path = tmp_path / "rates.jsonl"
    path.write_text(text)
    with pytest.raises(SystemExit, match="name another file for --keep, or delete this one"):
        stored.Kept(path, ASKED)
    assert path.read_text() == text


def test_a_file_with_nothing_in_it_is_begun(stored: Any, tmp_path: Path) -> None:
    path = tmp_path / "rates.jsonl"
    path.touch()
    assert [stored.Kept(path, ASKED)("one", lambda said=said: said) for said in ("1.0", "2.0")] == ["1.0", "1.0"]


def test_the_name_of_the_host_is_not_kept(stored: Any, tmp_path: Path) -> None:
    path = tmp_path / "rates.jsonl"
    stored.Kept(path, ASKED)("one", lambda: "1.0")
    head = json.loads(path.read_text().splitlines()[0])
    assert head["asked"] == ASKED
    assert set(head) == {"script", "asked", "commit", "dirty", "versions", "machine"}
    assert set(head["machine"]) == {"cpu", "cpus", "os"}
