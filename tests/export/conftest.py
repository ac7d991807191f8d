"""Runs that a test may change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A function that copies one of the runs that are kept of every version."""

    def copy(version: str) -> Path:
        return Path(shutil.copytree(Path(__file__).parents[1] / "runs" / version, tmp_path / "runs" / version))

    return copy
