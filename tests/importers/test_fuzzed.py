"""Coverage-guided mutation of every kind of input, for seconds: the hour is ``benchmarks/fuzz_importers.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_but_clear_errors_comes_out_of_mutated_inputs(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    kept = tmp_path / "fuzzed.json"
    command = [sys.executable, "benchmarks/fuzz_importers.py", "--seconds", "2", "--output", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    found = json.loads(kept.read_text())["result"]
    assert [one["target"] for one in found["targets"]] == ["trace", "fields", "dump", "pickle"]
    assert all(one["inputs"] > 0 for one in found["targets"])
    assert found["broken"] == 0
