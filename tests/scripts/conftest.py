"""Real programs under the hook, and where the frameworks that some of them need are found."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from tests.observe.hooks.conftest import watched

__all__ = ["watched"]

collect_ignore = ["programs"]  # they are run, never imported

BUILD = Path(__file__).parents[2] / "build"
BESIDE = BUILD / "frameworks"
"""Where ``make frameworks`` puts what ``requirements.txt`` names: not in the environment, which it would change."""

APART = BUILD / "frameworks-apart"
"""Likewise for ``requirements-apart.txt``: what other frameworks would import if it lay beside them."""


def with_frameworks(*names: str) -> dict[str, str]:
    """Variables that let a program import ``names``; the test is skipped where one of them is not installed."""
    for places in ([str(BESIDE)], [str(APART), str(BESIDE)]):
        if all(_is_installed(name, places) for name in names):
            return {"PYTHONPATH": os.pathsep.join(filter(None, [*places, os.environ.get("PYTHONPATH", "")]))}
    for name in names:
        if not _is_installed(name, sys.path):
            pytest.skip(f"{name} is not installed; to have it: make frameworks")
    return {}


def _is_installed(name: str, places: list[str]) -> bool:
    return any(importlib.metadata.distributions(name=name, path=places))
