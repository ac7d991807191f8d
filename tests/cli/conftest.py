"""What tests of the command line share: verbs in this process, where a process of their own shows nothing more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allpull.cli import app


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line as ``run_cli`` has it, in this process; what a user would see as a traceback is raised."""

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "120")
            patch.setenv("NO_COLOR", "1")
            if cwd is not None:
                patch.chdir(cwd)
            done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return run
