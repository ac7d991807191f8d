"""The same virtual accelerators without hosts and links, which need neither root nor Linux."""

from __future__ import annotations

import json
import statistics

import pytest

CLUSTER = """
[cluster]
hosts = 2
ranks_per_host = 1
link = "10 Gbit/s"
shrink = 100

[accelerator]
model = "resnet18"
batch = 8
forward_ms = 10
backward_ms = 20

[[faults]]
kind = "slow-rank"
rank = 1
where = "input"
delay = "50 ms"

[[faults]]
kind = "kill-rank"
rank = 0
"""


@pytest.mark.ranks
@pytest.mark.alone
def test_faults_of_the_accelerator_act_and_the_others_are_named_as_idle(run_cli, tmp_path):
    (tmp_path / "c.toml").write_text(CLUSTER)
    done = run_cli("rehearse", "c.toml", "--unshaped", "--steps", "10", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "these faults do not act: kill-rank" in done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    assert [fault["kind"] for fault in json.loads((directory / "truth.json").read_text())["faults"]] == ["slow-rank"]
    record = json.loads((directory / "run.json").read_text())
    assert (record["launcher"], record["ranks"], len(record["hosts"])) == ("local", 2, 1)
    assert record["spec"]["rehearsal"]["network"] is None
    inputs = {}
    for rank in (0, 1):
        lines = (directory / f"steps/rank-{rank:05d}.jsonl").read_text().splitlines()[1:]
        inputs[rank] = [json.loads(line)["input_ns"] / 1e9 for line in lines]
    assert len(inputs[1]) == 10
    assert statistics.median(inputs[1]) >= 0.04  # a wait makes up for what the one before it overshot
    assert statistics.median(inputs[0]) < 0.04


def test_its_script_says_what_does_not_act_and_makes_no_network(run_cli, tmp_path):
    (tmp_path / "c.toml").write_text(CLUSTER)
    done = run_cli("rehearse", "c.toml", "--unshaped", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "do not act: kill-rank" in done.stdout
    assert "allpull.observe.agent" in done.stdout
    assert "ip netns" not in done.stdout
    assert not (tmp_path / "runs").exists()
