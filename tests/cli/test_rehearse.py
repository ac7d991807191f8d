"""The verb, and the probes on a virtual cluster: what was planted is found again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2"),
]

CLUSTER = """
[cluster]
hosts = 2
ranks_per_host = 1
link = "400 Mbit/s"
"""


@pytest.mark.alone
def test_rehearse_leaves_a_whole_run_with_its_truth(run_cli, tmp_path):
    """60 ms late in backward on rank 1 is waiting on rank 0, and nowhere else."""
    text = CLUSTER + (
        "[accelerator]\nmodel = 'resnet18'\nbatch = 8\nforward_ms = 40\nbackward_ms = 80\n"
        "[[faults]]\nkind = 'slow-rank'\nrank = 1\nwhere = 'backward'\ndelay = '60 ms'\n"
    )
    (tmp_path / "c.toml").write_text(text.replace('link = "400 Mbit/s"', 'link = "10 Gbit/s"\nshrink = 50'))
    done = run_cli("rehearse", "c.toml", "--steps", "15", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "truth.json").read_text())["faults"][0]["delay_s"] == 0.06
    record = json.loads((directory / "run.json").read_text())
    assert set(record["spec"]) == {"name", "launch", "observe", "rehearsal"}
    assert (record["global_batch"], record["seed"]) == (16, None)
    asked = record["spec"]["rehearsal"]
    assert asked["sha256"] == hashlib.sha256((tmp_path / "c.toml").read_bytes()).hexdigest()
    assert (asked["steps"], asked["shrink"], asked["accelerator"]["model"]) == (15, 50.0, "resnet18")
    assert asked["network"]["links_bytes_per_s"] == [1.25e9, 1.25e9]
    assert "slow-rank" not in json.dumps(record)
    run = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert (run["ranks"], run["hosts"], run["status"]) == (2, 2, "completed")
    assert run["global_batch"] == 16
    assert 0.02 < run["phases"]["wait"] < 0.045  # half of 60 ms: the mean over both ranks
    assert run["phases"]["forward"] == pytest.approx(0.04, rel=0.25)


@pytest.mark.alone
@pytest.mark.slow
def test_a_planted_clock_is_found_within_its_own_bound(run_cli, tmp_path):
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    (tmp_path / "c.toml").write_text(CLUSTER + '[[host]]\nindex = 1\nclock_offset = "5 s"\nclock_drift_ppm = 100\n')
    done = run_cli("probe", "clock", "--launcher", "rehearse:c.toml", "--for", "4s", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    monotonic, realtime = json.loads(done.stdout)["offsets"]
    assert abs(monotonic["offset_s"]) <= monotonic["offset_bound_s"]
    assert abs(realtime["drift_ppm"] - 100) <= realtime["drift_bound_ppm"] + 0.1
    # the drift has run since the host was made, some seconds before
    assert 5 - realtime["offset_bound_s"] <= realtime["offset_s"] <= 5 + 120 * 100e-6


@pytest.mark.alone
def test_a_shaped_link_gives_the_bandwidth_that_was_asked_for(run_cli, tmp_path):
    """TCP's share of 400 Mbit/s is 95.6 %; the fit of a probe finds the link (coarse: make proof has the table)."""
    (tmp_path / "c.toml").write_text(CLUSTER)
    command = ("probe", "allreduce", "-n", "2", "--launcher", "rehearse:c.toml", "--sizes", "2MiB,8MiB", "--json")
    done = run_cli(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    link = json.loads(done.stdout)["fit"]["link_bytes_per_s"]["value"]
    assert link == pytest.approx(0.956 * 50e6, rel=0.25)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CLUSTER.replace('"400 Mbit/s"', '"0 Mbit/s"'), "cluster.link"),
        (CLUSTER + "colour = 1\n", "cluster.colour"),
        (CLUSTER.replace("hosts = 2", "hosts = 900"), "hosts"),
        ("[cluster", "c.toml"),
        (CLUSTER, "no [accelerator]"),
    ],
)
def test_a_cluster_that_cannot_be_is_one_clear_error(run_cli, tmp_path, text, expected):
    (tmp_path / "c.toml").write_text(text)
    done = run_cli("rehearse", "c.toml", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
