"""The course has every lab, and its check of a machine runs them and says what fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from allpull.labs import LABS

ROOT = Path(__file__).resolve().parents[2]


def test_the_course_has_every_lab() -> None:
    text = (ROOT / "docs" / "course.md").read_text("utf-8")
    assert not [name for name in LABS if f"`{name}`" not in text]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_its_check_says_which_lab_fails() -> None:
    command = [sys.executable, "tools/course_check.py", "ring", "golf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    lines = [line for line in done.stdout.splitlines() if "allpull lab" in line]
    assert [line.split()[0] for line in lines] == ["ok", "failed"], done.stdout
