"""State of a sharded optimizer that all ranks gather every few steps: the call is named, not the rank that sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.explain.made import STEPS, found, job
from tests.replay.windows import Call, only

import allpull

EVERY = 8
AT = list(range(3, STEPS, EVERY))

PROGRAM = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
ddp = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))))
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.001)
for step in range(52):
    optimizer.zero_grad()
    ddp(torch.randn(16, 512)).square().mean().backward()
    optimizer.step()
    if step % 10 == 9:
        optimizer.consolidate_state_dict()
dist.destroy_process_group()
"""


def test_ranks_that_gather_their_state() -> None:
    """Rank 1 packs for 0.2 s in every eighth step, and sends for 80 ms."""
    sends = Call(use="broadcast in checkpoint", at="begin", transfer_s=0.08, root=1, steps=AT)
    gathers = job(4, checkpoint=only(4, STEPS, seconds=0.2, rank=1, every=EVERY, first=3), calls=(sends,))
    finding, *others = found(gathers).findings
    assert {one.rule for one in others} <= {"network-bound"}
    assert finding.rule == "sequential-checkpoint"
    assert finding.ranks == []
    assert "All ranks gather" in finding.title
    assert "consolidate_state_dict()" in finding.remedy
    assert finding.loss_s_per_step == pytest.approx((0.2 + 0.08) / EVERY, rel=0.03)


def test_one_rank_that_writes_gathers_nothing() -> None:
    (finding,) = found(job(4, checkpoint=only(4, STEPS, seconds=0.2, rank=0, every=EVERY, first=3))).findings
    assert finding.rule == "sequential-checkpoint"
    assert finding.ranks == [0]
    assert "gather" not in finding.title
    assert "consolidate_state_dict" not in finding.remedy


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.alone
def test_a_real_optimizer_that_is_consolidated(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = run_cli("run", "-n", "2", "--out", "runs", "--", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    explained = allpull.explain(directory)
    named = [one for one in explained.findings if one.rule in {"sequential-checkpoint", "checkpoint-share"}]
    assert len(named) == 1, [one.title for one in explained.findings]
    assert "consolidate_state_dict()" in named[0].remedy
    assert named[0].ranks == []
