"""Gradients that a communication hook exchanges among some ranks only are no meeting of all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Wire, even, spread

import allpull
from allpull.analyse.collectives.local_exchange import _connects, locally_exchanged

STEPS, FROM = 20, 5
HOOK = {
    "kind": "data_parallel",
    "step": 0,
    "network": 0,
    "find_unused_parameters": False,
    "broadcast_buffers": False,
    "static_graph": False,
    "buffers_bytes": 0,
    "unused_bytes": None,
    "checked_passes": 0,
    "hook": "post_localSGD_hook",
    "hook_calls": 1,
    "hook_ns": 1000,
    "t_ns": 0,
}
SOME, ALL = 90, 91


def kind(number: int, ranks: int, group: str) -> dict[str, Any]:
    what = {"op": "all_reduce", "size_bytes": 4096, "dtype": "float32", "group": group, "group_ranks": ranks}
    return {"kind": "collective_kind", "id": number, **what, "root": None, "inside": "backward", "t_ns": 0}


def recorded(
    folder: Path,
    *,
    hook: str | None = "post_localSGD_hook",
    first: tuple[int, ...] = (ALL,),
    later: tuple[int, ...] = (SOME,),
    group_ranks: int = 2,
) -> allpull.Run:
    """Two ranks that call the kinds ``first`` in the first steps, and ``later`` from step ``FROM`` on."""
    wire = Wire(latency_s=0.0, bytes_per_s=1e9)
    buckets = spread(total=1 << 20, count=1)
    training = even(ranks=2, steps=STEPS, forward_s=0.01, backward_s=0.02, buckets=buckets, wire=wire)
    run = write(simulate(training), folder, Recording(warmup=0, buckets=False, reductions=False))
    for rank in range(2):
        path = run / f"steps/rank-{rank:05d}.jsonl"
        header, *records = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        for record in records:
            called = later if record["step"] >= FROM else first
            record["collectives"] = [[one, record["step"], record["begin_ns"], None, None] for one in called]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *records)), "ascii")
        path = run / f"events/rank-{rank:05d}.jsonl"
        header, *kept = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        events = [
            kind(SOME, 1, f"own, {rank}"),
            kind(ALL, 2, "all"),
            {**HOOK, "hook": hook, "group_ranks": group_ranks},
        ]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *events, *kept)), "ascii")
    return allpull.open_run(run)


def test_steps_of_local_sgd_have_no_reduction_among_all(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    assert locally_exchanged(run.data).to_list() == list(range(FROM, STEPS))
    assert run.aligned.reductions["step"].unique().to_list() == list(range(FROM))
    said = "n 15 of 19 steps post_localSGD_hook exchanged gradients within groups of fewer than all ranks"
    assert any(said in gap for gap in run.gaps)
    assert not any("arrivals" in gap for gap in run.gaps)
    result = allpull.explain(run)
    assert result.window.steps == STEPS
    assert any(said in note for note in result.notes)
    assert not any("reduction of gradients was not recorded" in note for note in result.notes)


@pytest.mark.parametrize("given", [{"hook": None}, {"later": (SOME, ALL)}, {"later": ()}, {"later": (ALL,)}])
def test_other_calls_in_backward_say_nothing_about_the_exchange(tmp_path: Path, given: dict[str, Any]) -> None:
    run = recorded(tmp_path, **given)
    assert locally_exchanged(run.data).is_empty()
    assert run.aligned.reductions["step"].n_unique() == STEPS


def test_groups_that_overlap_connect_all_ranks() -> None:
    """Of two hosts with two ranks each, one reduction within each and one between them."""
    within = "0 1,1 1,2 2,3 2"
    assert not _connects(within, 4)
    assert _connects(f"{within},0 3,2 3", 4)
    assert not _connects(f"{within},0 3,2 3", 5)


PROGRAM = """
import time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 64))
own, _ = dist.new_subgroups(1)
state = PostLocalSGDState(process_group=None, subgroup=own, start_localSGD_iter=10)
model.register_comm_hook(state, post_localSGD_hook)
averager = PeriodicModelAverager(period=4, warmup_steps=10)
optimizer = PostLocalSGDOptimizer(optim=torch.optim.SGD(model.parameters(), lr=0.001), averager=averager)
for step in range(60):
    optimizer.zero_grad()
    output = model(torch.randn(8, 64))
    time.sleep(0.03 if dist.get_rank() else 0.01)
    output.square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
def test_real_local_sgd_waits_where_models_are_averaged(tmp_path: Path) -> None:
    """Rank 1 sleeps 20 ms longer in each step, and rank 0 waits for it in every fourth."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["-m", "allpull", "run", "-n", "2", "--out", str(tmp_path / "runs"), "--", str(program)]
    done = subprocess.run(
        [sys.executable, *options], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    run = allpull.open_run(next((tmp_path / "runs").iterdir()))
    assert {10, 59} <= set(locally_exchanged(run.data).to_list())
    result = allpull.explain(run)
    assert result.window.steps > 40
    slow = next(one for one in result.findings if one.rule == "slow-rank")
    assert slow.ranks == [1]
    assert slow.loss_s_per_step == pytest.approx(0.02, abs=0.006)


def test_networks_that_smaller_groups_average_have_no_meeting_of_all(tmp_path: Path) -> None:
    """Two trainings in one job, as an ensemble; calls of the program may connect such groups."""
    ensemble = recorded(tmp_path / "ensemble", hook=None, first=(), later=(), group_ranks=1)
    assert locally_exchanged(ensemble.data).to_list() == list(range(STEPS))
    assert any("DistributedDataParallel exchanged gradients within groups of fewer" in gap for gap in ensemble.gaps)
    said = "gradients were exchanged within groups of fewer than all ranks: who waited within them is not told"
    assert any(said in note for note in allpull.explain(ensemble).notes)
    connected = recorded(tmp_path / "connected", hook=None, later=(ALL,), group_ranks=1)
    assert locally_exchanged(connected.data).is_empty()
