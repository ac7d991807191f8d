"""Real programs under the hook, and where the frameworks that some of them need are found."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from tests.observe.hooks.conftest import watched

__all__ = ["watched"]

collect_ignore = ["programs"]  # they are run, never imported

BESIDE = Path(__file__).parents[2] / "build" / "frameworks"
"""Where ``.ci/run`` puts what ``requirements.txt`` names: beside the environment, so that it changes none of it."""


def with_frameworks(*names: str) -> dict[str, str]:
    """Variables that let a program import ``names``; the test is skipped where one of them is not installed."""
    missing = [name for name in names if not list(importlib.metadata.distributions(name=name, path=[str(BESIDE)]))]
    if not missing:
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(BESIDE), os.environ.get("PYTHONPATH", "")]))}
    for name in missing:
        if not list(importlib.metadata.distributions(name=name)):
            install = f"pip install --no-deps --target {BESIDE} -r tests/scripts/requirements.txt"
            pytest.skip(f"{name} is not installed; to have it: {install}")
    return {}
