"""Two real ranks stall together for a planted reason: explain names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import allpull
from allpull.schema.explained import Finding

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow, pytest.mark.alone]

PROGRAM = """
import gc, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Node:
    def __init__(self):
        self.itself = self

STALLED = (14, 22, 30, 38, 46, 54)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
{prepare}
ddp = DistributedDataParallel(network)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for step in range(62):
    rows, kept = 64, []
    {plant}
    optimizer.zero_grad()
    ddp(torch.randn(rows, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.004)
dist.destroy_process_group()
"""

GARBAGE = """
    if step in STALLED:
        kept = [Node() for _ in range(400_000)]
        del kept
        gc.collect()
"""
SHAPES = """
    rows = 64 + (STALLED.index(step) + 1 if step in STALLED else 0)
"""
SLEEP = """
    if step in STALLED:
        time.sleep(0.4)
"""


@pytest.fixture
def stalled(tmp_path: Path, run_cli: Callable[..., Any]) -> Callable[..., Finding]:
    """``stalled(plant, prepare)``: what is said of the stalls of a program with ``plant`` in its loop."""

    def run(plant: str, prepare: str = "") -> Finding:
        (tmp_path / "train.py").write_text(PROGRAM.format(plant=plant.strip(), prepare=prepare))
        done = run_cli("run", "-n", "2", "--out", "runs", "--", "train.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (directory,) = (tmp_path / "runs").iterdir()
        explained = allpull.explain(directory)
        findings = [one for one in explained.findings if one.rule == "common-stall"]
        if not findings and any(one.rule == "cpu-contention" for one in explained.findings):
            pytest.skip("ranks wait so long for a CPU in every step that no stall stands out")
        assert len(findings) == 1, [one.title for one in explained.findings]
        numbers = re.search(r"stalled steps: ([\d, ]+)", " ".join(line.what for line in findings[0].evidence))
        assert numbers is not None
        assert {int(number) for number in numbers[1].split(", ")} & {14, 22, 30, 38, 46, 54}
        return findings[0]

    return run


def test_garbage_that_all_ranks_collect(stalled: Callable[..., Finding]) -> None:
    found = stalled(GARBAGE, "gc.disable()")
    assert "Python collects garbage" in found.title
    assert "gc.freeze()" in found.remedy


def test_shapes_that_change(stalled: Callable[..., Finding]) -> None:
    found = stalled(SHAPES, 'network = torch.compile(network, backend="aot_eager", dynamic=False)')
    assert "torch.compile compiles" in found.title
    assert "TORCH_LOGS=recompiles" in found.remedy


def test_a_stall_for_no_known_reason(stalled: Callable[..., Finding]) -> None:
    found = stalled(SLEEP)
    assert not {"garbage", "torch.compile", "allocator", "files"} & set(found.title.split())
    assert "the cause was not recorded" in found.remedy
