"""Which code is copied to other hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from allpull.errors import BadInput
from allpull.launch import carried_code


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code, an environment, a run directory, and data."""
    folder = tmp_path / "my program"
    for name in (
        "train.py",
        "parts/net.py",
        "env/pyvenv.cfg",
        "env/lib/other.py",
        "runs/one/run.json",
        "parts/ä\nb.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    with (folder / "data.bin").open("wb") as file:
        file.truncate(carried_code.MAX_FILE_BYTES + 1)
    monkeypatch.chdir(folder)
    return folder


def test_code_is_selected_without_environments_runs_and_data(program):
    code = carried_code.select(program)
    assert sorted(code.files) == ["parts/net.py", "parts/ä\nb.py", "train.py"]
    assert code.size_bytes == 18
    assert code.too_large == ("data.bin",)
    assert "files over 16 MiB (data.bin)" in str(code)


def test_git_says_what_is_code(program):
    (program / ".gitignore").write_text("env\nruns\n*.bin\n")
    subprocess.run(["git", "init", "-q"], cwd=program, check=True)
    subprocess.run(["git", "add", "train.py"], cwd=program, check=True)
    code = carried_code.select(program)
    assert sorted(code.files) == [".gitignore", "parts/net.py", "parts/ä\nb.py", "train.py"]
    assert code.by_git
    (program / "train.py").unlink()  # deleted, and git still has it
    assert "train.py" not in carried_code.select(program).files


def test_the_working_directory_is_in_the_folder(program, monkeypatch):
    assert carried_code.working_folder(".") == (program, ".")
    monkeypatch.chdir(program / "parts")
    assert carried_code.working_folder("..") == (program, "parts")
    with pytest.raises(BadInput, match="is not in"):
        carried_code.working_folder("../env")
    with pytest.raises(BadInput, match="no folder"):
        carried_code.working_folder("nowhere")


def test_too_much_is_refused(program, monkeypatch):
    monkeypatch.setattr(carried_code, "MAX_BYTES", 10)
    with pytest.raises(BadInput, match="more than"):
        carried_code.select(program)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no files"):
        carried_code.select(tmp_path)
