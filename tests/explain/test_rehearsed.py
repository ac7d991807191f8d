"""Real ranks, real DDP, and a fault whose size the explanation never sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CLUSTER = """
[cluster]
hosts = 2
ranks_per_host = 2
link = "100 Gbit/s"
shrink = 400

[accelerator]
model = "resnet18"
batch = 8
forward_ms = 40
backward_ms = 80
"""

SLOW = """
[[faults]]
kind = "slow-rank"
rank = 2
where = "backward"
delay = "60 ms"
"""

EVALUATES = """
[[faults]]
kind = "sequential-evaluation"
duration = "400 ms"
every = 8
"""


@pytest.fixture
def explained(run_cli, tmp_path: Path):
    """Rehearse a cluster file for 30 steps, without hosts and links, and explain it."""

    def run(text: str) -> dict:
        (tmp_path / "c.toml").write_text(text)
        done = run_cli("rehearse", "c.toml", "--unshaped", "--steps", "30", "--out", "runs", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        done = run_cli("explain", "runs", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.ranks
@pytest.mark.alone
def test_two_planted_faults_are_named_the_larger_first_with_their_sizes(explained) -> None:
    found = explained(CLUSTER + SLOW + EVALUATES)["findings"]
    assert [(one["rule"], one["ranks"]) for one in found[:2]] == [("slow-rank", [2]), ("sequential-evaluation", [0])]
    assert found[0]["evidence"][0]["value"] == pytest.approx(0.06, rel=0.25)
    assert found[1]["evidence"][0]["value"] == pytest.approx(0.05, rel=0.25)
    assert "in backward" in found[0]["title"]
