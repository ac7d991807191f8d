"""Two real ranks: DDP's own buckets in proportion, and a planted fault that shows where it was planted."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.launch.local import Local
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SHRINK = 20.0
RESNET50 = {"model": "resnet50", "batch": 64}
FROM_STEP = 15
DELAY_S = 0.08
FAULTY = {
    "shrink": 200.0,
    "accelerator": {**RESNET50, "forward_s": 0.005, "backward_s": 0.01, "epoch_steps": 10, "evaluation_s": 0.02},
    "faults": [
        {"kind": "slow-rank", "rank": 1, "where": "backward", "delay_s": DELAY_S, "from_step": FROM_STEP},
        {"kind": "sequential-evaluation", "every": 7, "duration_s": 0.05, "from_s": 0.01},
        {"kind": "sequential-checkpoint", "every": 9, "duration_s": 0.05},
        {"kind": "uneven-shards", "rank": 0, "factor": 0.5},
        {"kind": "slow-link", "host": 0, "factor": 0.5},
    ],
}
STEPS = 30

BUCKETS = """
import json, sys
from pathlib import Path
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from allpull.rehearse.ranks.loop import Training, join
from allpull.rehearse.ranks.schedule import plan
from allpull.rehearse.ranks.timeline import Timeline

job = json.loads(Path(sys.argv[1]).read_text())
place = join()
found = {}
for name in ("shrunk", "whole"):
    training = Training(plan(job["options"]["cluster"][name]), place, Timeline())
    if name == "whole":
        training.wrapped = DistributedDataParallel(training.accelerator)  # as torch makes it by itself
    training.run(4)
    data = training.wrapped._get_ddp_logging_data()
    found[name] = [int(size) for size in data["rebuilt_bucket_sizes"].split(",")]
print(json.dumps(found))
distributed.destroy_process_group()
"""


def run_ranks(out: Path, module: str, cluster: dict[str, Any], steps: int) -> Path:
    """Run ``module`` on two ranks of this machine, observed; its run directory."""
    spec = RunSpec(name="rehearsal", launch=LaunchSpec(ranks=2, grace_s=1), observe=ObserveSpec(counters=False))
    options = {"cluster": cluster, "steps": steps}
    job = prepare(spec, kind="run", module=module, command=[module], out=out, options=options)
    record = execute(job, Local(), lambda: None)
    assert record.exit is not None
    assert record.exit.code == 0, (job.directory / "job/logs/rank-00000.log").read_text(encoding="utf-8")
    return job.directory


def records(directory: Path, kind: str, rank: int) -> list[dict[str, Any]]:
    lines = (directory / f"{kind}/rank-{rank:05d}.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line) for line in lines[1:]]


def blocked_s(step: dict[str, Any]) -> float:
    """From this rank's last gradient to the end of the all-reduce."""
    return (step["done_ns"] - step["arrival_ns"]) / 1e9


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("runs"), "allpull.rehearse.ranks", FAULTY, STEPS)


@pytest.mark.alone
def test_a_rank_slow_in_backward_makes_the_other_wait_for_it(rehearsal):
    """The other rank is blocked for the delay, the slow one is not, and before the fault began neither was."""
    fast, slow = ([blocked_s(step) for step in records(rehearsal, "steps", rank)] for rank in (0, 1))
    assert statistics.median(fast[FROM_STEP:]) - statistics.median(slow[FROM_STEP:]) > DELAY_S / 2
    assert statistics.median(fast[:FROM_STEP]) < DELAY_S / 2
    took = [step["backward_ns"] / 1e9 for step in records(rehearsal, "steps", 1)]
    assert statistics.median(took[FROM_STEP:]) - statistics.median(took[:FROM_STEP]) > DELAY_S / 2


@pytest.mark.alone
def test_rank_0_evaluates_and_saves_alone_and_all_evaluate_together_at_the_end_of_an_epoch(rehearsal):
    spans: dict[int, list[tuple[str, int]]] = {}
    for rank in (0, 1):
        found = [event for event in records(rehearsal, "events", rank) if event["kind"] == "span"]
        spans[rank] = [(event["name"], event["step"]) for event in found]
    epochs = {("evaluation", step) for step in (10, 20, 30)}
    alone = {("evaluation", step) for step in (7, 14, 21, 28)} | {("checkpoint", step) for step in (9, 18, 27)}
    assert set(spans[1]) == epochs
    assert set(spans[0]) == epochs | alone


@pytest.mark.alone
def test_samples_follow_the_shards(rehearsal):
    assert {step["samples"] for step in records(rehearsal, "steps", 0)} == {32}
    assert {step["samples"] for step in records(rehearsal, "steps", 1)} == {64}
    assert len(records(rehearsal, "steps", 1)) == STEPS


def test_buckets_are_those_of_ddp_divided_by_shrink(tmp_path, monkeypatch):
    """ResNet-50 makes five; DDP's own, at full size, are the oracle (torch's 1 MiB first, then 25 MiB)."""
    (tmp_path / "buckets.py").write_text(BUCKETS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    times = {**RESNET50, "forward_s": 0.0, "backward_s": 0.0}
    clusters = {name: {"shrink": shrink, "accelerator": times} for name, shrink in (("shrunk", SHRINK), ("whole", 1.0))}
    directory = run_ranks(tmp_path / "runs", "buckets", clusters, 0)
    found = json.loads((directory / "job/logs/rank-00000.log").read_text(encoding="utf-8").splitlines()[-1])
    assert sum(found["whole"]) == 4 * 25_557_032
    assert len(found["whole"]) == 5
    assert found["shrunk"] == pytest.approx([size / SHRINK for size in found["whole"]], rel=0.01)
