"""Curves as TensorBoard itself reads them, and what is said where it is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scripts.conftest import with_frameworks

from allpull.api.runs import open_run
from allpull.export import tensorboard_log
from allpull.export.curves import MAX_POINTS, Curve, curves

RUNS = Path(__file__).parents[1] / "runs"
READ = """
import json, pathlib, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = {}
for folder in sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir()):
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    log.Reload()
    tags = log.Tags()
    scalars = {tag: [[one.wall_time, one.step, one.value] for one in log.Scalars(tag)] for tag in tags["scalars"]}
    texts = {tag: log.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
    found[folder.name] = {"scalars": scalars, "texts": texts}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_tensorboard_reads_every_curve_at_its_step_and_moment(copied: Callable[[str], Path], tmp_path: Path) -> None:
    env = {**os.environ, **with_frameworks("tensorboard", "protobuf")}
    run = copied("v1.0")
    events = run / "events/rank-00000.jsonl"
    events.write_text(events.read_text().replace('"test_top1"', '"<b>../x"'))
    export = [sys.executable, "-m", "allpull", "export", str(run), "--to", "tensorboard", "--out", str(tmp_path / "tb")]
    done = subprocess.run(export, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensorboard --logdir" in done.stderr
    read = [sys.executable, "-c", READ, str(tmp_path / "tb" / "v1.0")]
    found = json.loads(subprocess.run(read, env=env, capture_output=True, text=True, check=True).stdout)
    assert set(found) == {"job", "rank-00000", "rank-00001", "host-node1"}
    header, *steps = [json.loads(line) for line in (run / "steps/rank-00001.jsonl").read_text().splitlines()]
    offset = header["clock"]["realtime_ns"] - header["clock"]["monotonic_ns"]
    for (wall, number, value), step in zip(found["rank-00001"]["scalars"]["step/step_s"], steps, strict=True):
        assert number == step["step"]
        assert wall == pytest.approx((step["end_ns"] + offset) / 1e9, abs=1e-3)
        assert value == pytest.approx((step["end_ns"] - step["begin_ns"]) / 1e9, rel=1e-6)
    job = found["job"]["scalars"]
    assert {"train_loss", "<b>../x", "step/samples_per_s", "phase/backward_s"} <= set(job)
    losses = [json.loads(line) for line in events.read_text().splitlines() if '"train_loss"' in line]
    assert [(step, value) for _, step, value in job["train_loss"]] == [
        (one["step"], pytest.approx(one["value"], rel=1e-6)) for one in losses
    ]
    begun = {step["step"]: (step["begin_ns"] + offset) / 1e9 for step in steps}
    for wall, number, _ in found["rank-00001"]["scalars"]["cpu/busy_cpus"]:
        assert number == 0 or begun[number] <= wall + 1e-3
    assert "network/lo/sent_bytes_per_s" in found["host-node1"]["scalars"]
    assert "samples" in found["job"]["texts"]["explain/text_summary"] or found["job"]["texts"]


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(tensorboard_log.MissingPart) as missing:
        tensorboard_log.need_tensorboard()
    assert "pip install 'allpull[tensorboard]'" in missing.value.hint


def test_curves_have_one_owner_and_no_gap_in_them() -> None:
    made = list(curves(open_run(RUNS / "v1.0").aligned))
    assert len({(one.owner, one.name) for one in made}) == len(made)
    for one in made:
        assert one.steps.size == one.unix_s.size == one.values.size <= MAX_POINTS
        assert (one.values == one.values).all()
        assert (one.unix_s[1:] >= one.unix_s[:-1]).all()


def curve(made: list[Curve], owner: str, name: str) -> Curve:
    return next(one for one in made if (one.owner, one.name) == (owner, name))


def test_the_job_is_as_slow_as_its_slowest_rank() -> None:
    made = list(curves(open_run(RUNS / "v1.5").aligned))
    ranks = [curve(made, f"rank-0000{rank}", "step/step_s").values for rank in (0, 1)]
    assert curve(made, "job", "step/step_s").values == pytest.approx([max(pair) for pair in zip(*ranks, strict=True)])
    phases = [curve(made, f"rank-0000{rank}", "phase/backward_s").values for rank in (0, 1)]
    means = [sum(pair) / 2 for pair in zip(*phases, strict=True)]
    assert curve(made, "job", "phase/backward_s").values == pytest.approx(means)
