"""``allpull show --kernels``: a real trace of a GPU in a recorded run, as a table and as JSON; and runs without one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from jsonschema import Draft202012Validator

from allpull.schema.document import json_schema

TESTS = Path(__file__).resolve().parents[1]
Cli = Callable[..., CompletedProcess[str]]


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    """A recorded run whose last window on rank 0 is a trace of a GPU; the trace of rank 1 was lost."""
    run = Path(shutil.copytree(TESTS / "runs" / "v1.5", tmp_path / "profiled"))
    events = [json.loads(line) for line in (run / "events/rank-00000.jsonl").read_text("ascii").splitlines()]
    last = [event["file"] for event in events if event.get("kind") == "trace"][-1]
    (run / last).parent.mkdir(exist_ok=True)
    shutil.copy(TESTS / "traces/real/nccl_data.json.gz", run / last)
    return run


def test_table_and_json(run_cli: Cli, run_here: Cli, profiled: Path) -> None:
    done = run_cli("show", str(profiled), "--kernels", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    Draft202012Validator(json_schema("kernels")).validate(answer)
    assert [window["rank"] for window in answer["windows"]] == [0]
    assert answer["notes"] == ["the windows of rank 1 could not be read"]
    device = [one for one in answer["classes"] if one["on"] == "device"]
    assert [one["work"] for one in device][:3] == ["convolution", "communication", "norm"]
    for on in ("device", "cpu"):
        assert sum(one["share"] for one in answer["classes"] if one["on"] == on) == pytest.approx(1.0)
    top = answer["top"][0]
    assert top["name"].startswith("ncclKernel_AllReduce")
    assert top["work"] == "communication"
    assert top["s_per_step"] * answer["windows"][0]["steps"] == pytest.approx(46.762e-3, abs=1e-6)

    done = run_here("show", str(profiled), "--kernels")
    assert done.returncode == 0, done.stderr
    assert "work on the device" in done.stdout
    assert "convolution" in done.stdout
    assert "rank 1" in done.stdout


def test_what_has_no_window_is_refused(run_here: Cli, tmp_path: Path) -> None:
    run = Path(shutil.copytree(TESTS / "runs" / "v1.4", tmp_path / "plain"))
    done = run_here("show", str(run), "--kernels")
    assert done.returncode == 2
    assert "has no profiler window" in done.stderr
    assert "--trace" in done.stderr
    done = run_here("show", str(TESTS / "runs" / "v1.5"), "--kernels")
    assert done.returncode == 2
    assert "can be read" in done.stderr
    done = run_here("show", str(TESTS / "runs" / "v1.5"), str(run), "--kernels")
    assert done.returncode == 2
    assert "one run" in done.stderr
