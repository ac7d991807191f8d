"""Which code runs: versions of the packages that a result may depend on, and the commit of a working tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from allpull.observe.versions import PACKAGES, installed
from allpull.rundir import redact
from allpull.schema.run import GitState


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that a result may depend on, without importing them; None: not installed."""
    return {package: installed(package) for package in PACKAGES}


def git_state(folder: Path) -> tuple[GitState | None, int]:
    """Commit, dirtiness and remote of the working tree around ``folder``, and how many secrets were masked."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, 0
    remote, masked = redact.text(_git(folder, "remote", "get-url", "origin") or "")
    dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    return GitState(commit=commit, dirty=dirty, remote=remote or None), masked


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
