"""Updates that no optimizer makes end steps, under ``allpull run`` as it is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.rundir.read.run import read_run

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow]

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=8)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
for epoch in range(3):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad.zero_()
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_that_update_by_hand_have_steps_and_arrivals(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", "runs", "--", "by_hand.py"]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    run = metrics(AlignedRun(read_run(directory)))
    assert run.observed is not None
    assert (run.observed.steps, run.observed.epochs, run.observed.samples) == (24, 3, 2 * 3 * 64)
    assert (run.observed.boundary, run.observed.backward_passes) == ("parameter.update", 1.0)
    assert all(run.phases[name] for name in ("input", "forward", "backward", "optimizer", "transfer"))
    shown = subprocess.run(
        [sys.executable, "-m", "allpull", "show", str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    assert "updates of parameters" in shown
