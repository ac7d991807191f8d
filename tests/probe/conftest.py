"""What tests of probes share: photographs and packs, as the tests of packs make them, and figures of a probe's run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import folder, make_pack, photos  # noqa: F401  fixtures
from typer.testing import CliRunner

from allpull.cli import app


@pytest.fixture
def probed(run_cli: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """A function that runs a probe and gives its answer on stdout and the record in its run directory."""

    def run(*arguments: str, **environment: str) -> tuple[dict[str, Any], dict[str, Any]]:
        done = run_cli("probe", *arguments, "--json", "--out", str(tmp_path / "runs"), cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert next(iter(result)) == "schema"
        record = tmp_path / "runs" / result["run"] / "probes" / f"{arguments[0]}.json"
        return result, json.loads(record.read_text())

    return run


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that runs a probe that cannot be, and gives what was said; nothing was started or written."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["probe", *arguments])
        assert done.exit_code == 2, done.output
        assert list(tmp_path.iterdir()) == []
        return done.output

    return run
