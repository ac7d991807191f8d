"""A real rank that reads what the kernel keeps in memory: it is told, with the rate at which it read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

READS = """
import os, time
from allpull import marks

SIZE = 4 << 20
with open("data.bin", "wb") as file:
    file.write(os.urandom(SIZE))
    os.fsync(file.fileno())
for _ in range(60):
    with marks.phase("input"), open("data.bin", "rb") as file:
        file.read()
    time.sleep(0.04)
    marks.step(8)
"""


@pytest.mark.ranks
def test_reading_from_memory_is_told(run_cli, tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READS)
    done = run_cli("run", "-n", "1", "--out", "runs", "--", "reads.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_cli("explain", "runs", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    advice = {one["rule"]: one for one in said["findings"] if one["advice"]}
    read, stored = advice["page-cache-only"]["evidence"]
    step_s = said["window"]["seconds"] / said["window"]["steps"]
    assert read["value"] == pytest.approx((4 << 20) / step_s, rel=0.25)  # samples do not end where steps do
    assert stored["value"] == 0
