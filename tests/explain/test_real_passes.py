"""Real ranks that reduce in each of four passes of a step: a rank that is late in earlier passes is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import allpull

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow]

LATE_S = 0.030
PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LATE_S, PASSES, STEPS, FIRST = float(sys.argv[1]), 4, 36, 8
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
late = {"s": 0.0}

class Work(torch.autograd.Function):  # timed sleep: ranks that share two cores do not disturb each other
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.0015 + late["s"])
        late["s"] = 0.0
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.003)
        return grad

class Layer(nn.Linear):
    def forward(self, x):
        return Work.apply(super().forward(x))

ddp = DistributedDataParallel(nn.Sequential(*[Layer(128, 128) for _ in range(4)]), bucket_cap_mb=0.1)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001)
x = torch.randn(8, 128)
for step in range(STEPS):
    if step == FIRST:
        dist.barrier()
        begin = time.monotonic()
    optimizer.zero_grad()
    for number in range(PASSES):
        late["s"] = LATE_S if rank == 1 and number < 3 else 0.0
        ddp(x).sum().backward()
    optimizer.step()
dist.barrier()
if rank == 0:
    print("seconds per step:", (time.monotonic() - begin) / (STEPS - FIRST))
dist.destroy_process_group()
"""


def trained(folder: Path, late_s: float) -> tuple[float, Path]:
    """Seconds per step by the program's own clock, and its run directory."""
    program, out = folder / "program.py", folder / f"late_{late_s}"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(out), "--", str(program), str(late_s)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.search(r"seconds per step: ([\d.]+)", done.stdout)
    assert printed is not None, done.stdout
    return float(printed[1]), next(out.iterdir())


def test_a_rank_that_is_late_in_the_first_three_of_four_passes(tmp_path: Path) -> None:
    healthy_s, _ = trained(tmp_path, 0.0)
    late_s, run = trained(tmp_path, LATE_S)
    truth = late_s / healthy_s
    assert truth > 1.3, "the planted lateness does not show on this machine"
    explained = allpull.explain(run)
    assert explained.healthy is None
    (found,) = [finding for finding in explained.findings if finding.rule == "slow-rank"]
    assert found.ranks == [1]
    assert found.gain is not None
    assert found.gain.value - 1 == pytest.approx(truth - 1, rel=0.35)  # two runs on a machine that others may use
    assert "forward" in found.title
    assert found.evidence[0].value > 2 * LATE_S  # of all three passes, not of one
