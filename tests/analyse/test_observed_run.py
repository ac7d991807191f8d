"""A real program, observed: a rank that is late before forward is waited for, in the broadcast of DDP's buffers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.rundir.read.run import read_run
from allpull.schema.results import RunMetrics

LATE_S = 0.08
PROGRAM = f"""
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
layers = [layer for _ in range(3) for layer in (torch.nn.Linear(128, 128), torch.nn.BatchNorm1d(128), torch.nn.ReLU())]
model = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(256, 128))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
        if dist.get_rank() == 1:
            time.sleep({LATE_S})
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach().clone())
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model.module(data.tensors[0])
        time.sleep(0.3)
        model.train()
    dist.barrier()
dist.destroy_process_group()  # else Gloo's threads may abort the process as it ends
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, run_cli: Callable[..., Any]) -> Path:
    """The run directory of ``PROGRAM`` on two ranks, with one profiler window."""
    folder = tmp_path_factory.mktemp("observed")
    (folder / "train.py").write_text(PROGRAM)
    options = ("--trace", "every=1000,steps=2,first=5", "--out", "runs")
    done = run_cli("run", "-n", "2", *options, "--", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "runs").iterdir()
    return Path(found)


@pytest.fixture(scope="module")
def run_cli() -> Callable[..., Any]:
    """The command line, for a fixture of this module."""

    def run(*arguments: str, cwd: Path | None = None) -> Any:
        command = [sys.executable, "-m", "allpull", *arguments]
        environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.fixture(scope="module")
def found(directory: Path) -> RunMetrics:
    """What analysis makes of it."""
    return metrics(AlignedRun(read_run(directory)))


@pytest.mark.ranks
def test_a_late_rank_is_waited_for_and_is_no_slow_forward(found: RunMetrics) -> None:
    phases = found.phases
    assert phases["wait"] is not None
    assert phases["forward"] is not None
    assert phases["wait"] > 0.25 * LATE_S  # half of it is the mean of a punctual and a late rank, on a quiet machine
    assert phases["wait"] > 3 * phases["forward"]
    assert found.closure_error == pytest.approx(0, abs=1e-9)
    assert found.collectives is not None
    most = found.collectives[0]
    assert (most.op, most.inside, most.group_ranks, most.calls_per_step) == ("broadcast", "forward", 2, 1)
    assert sum(use.unmatched for use in found.collectives) == 0
    assert {use.op for use in found.collectives} == {"broadcast", "all_reduce", "barrier"}


@pytest.mark.ranks
def test_steps_samples_and_the_evaluation_on_rank_0_are_seen(found: RunMetrics) -> None:
    assert found.observed is not None
    assert (found.observed.steps, found.observed.epochs, found.observed.samples) == (32, 2, 512)
    assert found.observed.backward_passes == 1
    (evaluation,) = [pause for pause in found.pauses if pause.name == "evaluation"]
    assert (evaluation.ranks, evaluation.times) == ([0], 2)
    assert evaluation.seconds > 0.6
    assert (evaluation.waited_in, evaluation.waited_s is not None) == ("barrier", True)


@pytest.mark.ranks
def test_buckets_of_the_window_are_those_that_ddp_told_of(found: RunMetrics, directory: Path) -> None:
    told = read_run(directory).events[0].buckets[0].sizes_bytes
    assert found.buckets is not None
    assert [bucket.size_bytes for bucket in found.buckets] == told
    assert len(told) > 1
    for bucket in found.buckets:
        assert bucket.seen == 2 * 2  # two steps of two ranks
        assert bucket.ready_s is not None
        assert bucket.start_s is not None
        assert bucket.end_s is not None
        assert 0 < bucket.ready_s <= bucket.start_s + 50e-6 < bucket.end_s
    ready = [bucket.ready_s for bucket in found.buckets]
    assert ready == sorted(ready)  # type: ignore[type-var]  # none is None, as was seen above


@pytest.mark.ranks
def test_all_of_it_stands_on_one_timeline(directory: Path, tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    done = run_cli("show", str(directory), "--perfetto", str(tmp_path / "t.json"))
    assert done.returncode == 0, done.stderr
    assert "broadcast in forward" in done.stdout
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    titles = {event["args"]["name"].partition(" (")[0] for event in events if event["name"] == "thread_name"}
    assert titles == {"steps", "reduction of gradients", "collectives", "buckets", "between steps"}
    assert {event["pid"] for event in events} == {1, 2, 3}  # two ranks, and their host
