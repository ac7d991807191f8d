"""Output folders that cannot be: one clear error that says what, where and what to do, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from allpull.errors import BadInput
from allpull.output_folder import existing_folder, make_folder

KEPT = Path(__file__).parents[1] / "runs/v1.6"
VERBS = {
    "train": (*("train", "digits"), "--out"),
    "run": ("run", "--out"),
    "env": ("env", "--out"),
    "import": ("import", "trace.json", "--out"),
    "export": ("export", "run", "--to", "csv", "--out"),
    "figures": ("report", "run", "-o", "page.html", "--figures"),
    "lab": ("lab", "ring", "-o", "page.html", "--figures"),
    "pack": ("pack", "pictures"),
    "probe": ("probe", "compute", "resnet18", "--out"),
    "study": ("study", "run", "study.toml", "--out"),
    "tune": ("tune", "study.toml", "--out"),
}
"""What takes an output folder, up to its name."""

PLACES = {
    "file": "not a folder",
    "dangling": "a link that leads to no folder",
    "file/below": "file is not a folder",
    "x" * 300: "File name too long",
    "/sys/kernel/x": "permi",  # root gets another reason there than others
}
"""Folder → a part of the reason."""

STUDY = """
[study]
name = "mine"
steps = 20
[run]
command = ["program.py"]
[axes]
ranks = [1]
[tune]
objective = "throughput"
trials = 2
[tune.space]
threads = [1, 2]
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the verbs read, a file and a dangling link."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    shutil.copytree(KEPT, tmp_path / "run")
    (tmp_path / "pictures/cat").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "pictures/cat/1.png")
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    trace = {"traceEvents": [event], "distributedInfo": {"rank": 0, "world_size": 1, "backend": "nccl"}}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "program.py").write_text("")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_cannot_be_is_one_clear_error(verb: str, workplace: Path, run_cli, run_here) -> None:
    tail = ("--", "true") if verb == "run" else ()
    before = sorted(path.name for path in workplace.iterdir())
    for place, reason in PLACES.items():
        run = run_cli if place == "file" else run_here
        done = run(*VERBS[verb], place, *tail, cwd=workplace)
        assert done.returncode == 2, (place, done.stderr)
        error = done.stderr[done.stderr.index("allpull: ") :]
        assert f"cannot write into the folder {place.removesuffix('/run')}: " in error, error
        assert reason in error
        assert "\nhint: choose another folder" in error
        assert "Traceback" not in done.stderr
        assert (workplace / "file").read_text() == "mine"
        assert sorted(path.name for path in workplace.iterdir()) == before


@pytest.mark.parametrize("place", ["file", "dangling", "file/below"])
def test_a_doctor_of_a_folder_that_cannot_be_says_so(place: str, workplace: Path, run_cli) -> None:
    done = run_cli("doctor", "--out", place)
    assert done.returncode == 2
    assert PLACES[place] in done.stderr
    assert existing_folder(Path("new/below/new")) == workplace
    assert existing_folder(workplace) == workplace


def test_a_folder_that_is_made_is_private_where_that_is_wanted(tmp_path: Path) -> None:
    make_folder(tmp_path / "a/b", mode=0o700)
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    make_folder(tmp_path / "a/b")  # again


@pytest.mark.parametrize("place", ["file", "file/below", "dangling", "x" * 300, "null\0"])
def test_what_is_in_the_way_stays(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(BadInput, match="cannot write into the folder"):
        make_folder(tmp_path / place)
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_which_we_may_only_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput, match="no permission to write there"):
        make_folder(tmp_path)


def test_a_folder_that_another_user_may_not_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so its rights are taken away from the question."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadInput, match="no permission to write there"):
        make_folder(tmp_path)
