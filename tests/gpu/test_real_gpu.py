"""What is recorded and explained on a real GPU, against the program's own clock: events of CUDA around its parts.

One GPU is enough. Ranks that share it exchange by Gloo; NCCL needs a GPU of its own for each rank, so it has one here.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import allpull, lines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.torch,
    pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="no NVIDIA GPU"),
]

PROGRAM = Path(__file__).with_name("program.py")
SETTLED = 8  # steps until convolutions are chosen, buckets rebuilt and the last parameters known
MS = 1e6

Recorded = Callable[..., Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Runs the program under `allpull run`, once for each set of arguments; where its clock and its run are."""
    made: dict[tuple[str, ...], Path] = {}

    def run(*arguments: str, ranks: int = 1) -> Path:
        key = (*arguments, str(ranks))
        if key not in made:
            out = made[key] = tmp_path_factory.mktemp("gpu")
            done = allpull("run", "-n", str(ranks), "--out", str(out), "--", str(PROGRAM), str(out), *arguments)
            assert done.returncode == 0, done.stderr
        return made[key]

    return run


def run_of(out: Path) -> Path:
    (directory,) = (path.parent for path in out.glob("*/run.json"))
    return directory


def own(out: Path, rank: int = 0, kind: str = "") -> dict[str, Any]:
    measured: dict[str, Any] = json.loads((out / f"own-{rank}{kind}.json").read_text(encoding="ascii"))
    return measured


def device_steps(out: Path, rank: int = 0) -> dict[int, dict[str, Any]]:
    events = lines(run_of(out) / f"events/rank-{rank:05d}.jsonl")
    return {event["step"]: event for event in events if event["kind"] == "device_step"}


def explained(out: Path) -> dict[str, Any]:
    done = allpull("explain", str(run_of(out)), "--json")
    assert done.returncode == 0, done.stderr
    explanation: dict[str, Any] = json.loads(done.stdout)
    return explanation


def finding(explanation: dict[str, Any], rule: str) -> dict[str, Any]:
    found = [one for one in explanation["findings"] if one["rule"] == rule]
    assert len(found) == 1, [one["title"] for one in explanation["findings"]]
    return dict(found[0])


LARGE = ("--width", "256", "--batch", "64")
SMALL = ("--width", "16", "--batch", "4", "--steps", "150")
SHARED = ("--backend", "gloo", "--width", "128")


def test_times_of_the_device_are_those_of_the_programs_own_events(recorded: Recorded) -> None:
    out = recorded(*LARGE)
    steps, clock = device_steps(out), own(out)
    assert len(steps) == len(clock["parts_ms"])
    numbers = range(SETTLED, len(steps))
    for part, name in enumerate(("forward_ns", "backward_ns", "optimizer_ns")):
        apart = [abs(clock["parts_ms"][step][part] - steps[step][name] / MS) for step in numbers]
        assert statistics.median(apart) < 0.1, name  # the program's events are outside of ours
    lengths_ms = {step: (steps[step]["end_ns"] - steps[step]["begin_ns"]) / MS for step in numbers}
    apart = [abs(clock["step_ms"][step - 1] - length_ms) for step, length_ms in lengths_ms.items()]
    assert statistics.median(apart) < 0.02


def test_a_device_that_computes_all_the_time_is_busy_and_not_called_launch_bound(recorded: Recorded) -> None:
    out = recorded(*LARGE)
    steps = [step for number, step in device_steps(out).items() if number >= SETTLED]
    busy = [step["busy_ns"] / (step["end_ns"] - step["begin_ns"]) for step in steps if "busy_ns" in step]
    assert len(busy) > len(steps) / 2
    assert statistics.median(busy) > 0.9
    assert "launch-bound" not in {one["rule"] for one in explained(out)["findings"]}


def test_a_small_network_is_launch_bound_and_a_captured_one_gains_no_more_than_said(recorded: Recorded) -> None:
    out = recorded(*SMALL)
    graph = recorded(*SMALL, "--graph")
    found = finding(explained(out), "launch-bound")
    eager_ms, replayed_ms = (
        statistics.median(own(path, kind=kind)["step_ms"][SETTLED:]) for path, kind in ((out, ""), (graph, "-graph"))
    )
    assert replayed_ms < 0.7 * eager_ms
    assert found["gain"]["value"] * 1.1 > eager_ms / replayed_ms


def test_a_rank_that_is_late_on_a_shared_gpu_is_named_and_priced(recorded: Recorded) -> None:
    late, alone = recorded(*SHARED, "--late-ms", "40", ranks=2), recorded(*SHARED, ranks=2)
    found = finding(explained(late), "slow-rank")
    assert found["ranks"] == [1]
    truth = statistics.median(own(late)["step_ms"][SETTLED:]) / statistics.median(own(alone)["step_ms"][SETTLED:])
    assert found["gain"]["value"] == pytest.approx(truth, rel=0.15)


def test_each_pass_that_reduces_through_nccl_is_recorded(recorded: Recorded) -> None:
    out = recorded("--backend", "nccl", "--passes", "3")
    steps = device_steps(out)
    known = [step["reductions"] for number, step in steps.items() if number >= SETTLED and "reductions" in step]
    assert len(known) > len(steps) / 2
    assert {len(reductions) for reductions in known} == {3}
    for step in steps.values():
        if "reductions" in step:
            for _, begin, done, *_ in step["reductions"]:
                assert step["begin_ns"] <= begin <= done <= step["end_ns"]


def test_counters_of_the_gpu_are_sampled(recorded: Recorded) -> None:
    pytest.importorskip("pynvml")
    (file,) = (run_of(recorded(*LARGE)) / "counters").glob("*.jsonl")
    sampled = [sample["gpus"] for sample in lines(file) if sample.get("gpus")]
    assert sampled
    first = next(iter(sampled[-1].values()))
    assert first["power_w"] > 0
    assert first["clock_hz"] > 1e8
    assert 0 < first["temperature_c"] < 120


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "o2"])
def test_the_trainer_learns_in_each_precision(tmp_path: Path, precision: str) -> None:
    assert trained(tmp_path, f"train.precision={precision}") > 0.8


def test_a_captured_step_trains_as_an_eager_one(tmp_path: Path) -> None:
    assert trained(tmp_path, "train.cuda_graph=true") > 0.8
    (events,) = tmp_path.glob("*/events/rank-00000.jsonl")
    assert "steps run eagerly" not in events.read_text(encoding="ascii")


def trained(out: Path, *options: str) -> float:
    """The top-1 accuracy of three epochs of digits."""
    settings = [word for option in ("train.epochs=3", *options) for word in ("--set", option)]
    done = allpull("train", "digits", "--out", str(out), "--json", *settings)
    assert done.returncode == 0, done.stderr
    (events,) = out.glob("*/events/rank-00000.jsonl")
    scores = [one["value"] for one in lines(events) if one["kind"] == "metric" and one["name"] == "test_top1"]
    return float(scores[-1])
