"""A real rehearsal: calibrated on two hosts, the command line forecasts four, which are then rehearsed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

STEPS = 32  # 5 of warm-up, and 20 are the least that a forecast is fitted to
CLUSTER = """
[cluster]
hosts = {hosts}
ranks_per_host = 1
link = "2 Gbit/s"
shrink = 20

[accelerator]
model = "resnet50"
batch = 16
forward_ms = 20.0
backward_ms = 40.0
optimizer_ms = 2.0
"""
LARGEST_ERROR = 0.15  # twice what is promised of a quiet machine: others may compute meanwhile


@pytest.mark.root
@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2")
@pytest.mark.ranks
@pytest.mark.slow
def test_four_hosts_are_forecast_from_two(tmp_path: Path, run_cli) -> None:
    for hosts in (2, 4):
        cluster = tmp_path / f"{hosts}.toml"
        cluster.write_text(CLUSTER.format(hosts=hosts))
        done = run_cli("rehearse", str(cluster), "--steps", str(STEPS), "--out", str(tmp_path / "runs"))
        assert done.returncode == 0, done.stderr
    runs = str(tmp_path / "runs")
    done = run_cli("predict", runs, "--calibrate", "1", "--ranks", "16384", "--what-if", "link=x2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    four, many = result["predictions"]
    assert (four["ranks"], four["hosts"], many["ranks"]) == (4, 4, 16_384)
    assert four["step_s"]["value"] == pytest.approx(four["measured_step_s"], rel=LARGEST_ERROR)
    assert sum(four["terms"].values()) == pytest.approx(four["step_s"]["value"])
    assert four["bottleneck"] == "exchange"
    linear = next(one for one in result["baselines"] if (one["name"], one["ranks"]) == ("linear scaling", 4))
    assert abs(linear["step_s"] - four["measured_step_s"]) > abs(four["step_s"]["value"] - four["measured_step_s"])
    assert result["waterfall"][0]["step_s"]["value"] < four["step_s"]["value"]
    shown = run_cli("predict", runs, "--calibrate", "1", "--ranks", "8")
    assert "held back" in shown.stdout
    refused = run_cli("predict", runs, "--calibrate", "1", "--ranks", "8", "--batch", "64")
    assert refused.returncode == 3
    assert "how compute grows" in refused.stdout
