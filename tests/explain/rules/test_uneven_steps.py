"""Ranks that make different numbers of steps are named, and nobody else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.explain.made import facts, job, rules

import allpull
from allpull.explain.findings import findings

JOINED = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.join import Join
dist.init_process_group("gloo")
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for epoch in range(4):
    with Join([network]):
        for _ in range(20 if dist.get_rank() == 0 else 30):
            optimizer.zero_grad()
            network(torch.randn(8, 64)).sum().backward()
            optimizer.step()
dist.destroy_process_group()
"""


def test_the_rank_with_the_most_steps_is_named_and_what_equal_numbers_gain() -> None:
    (one,) = findings(facts(job(2), reducing_steps=np.array([160, 240]))).findings
    assert (one.rule, one.ranks) == ("uneven-steps", [1])
    assert one.evidence[0].value == pytest.approx(1.2)


@pytest.mark.parametrize("steps", [[240, 240], [239, 240], [1, 3], [0, 0]])
def test_equal_numbers_or_one_step_more_are_not_uneven(steps: list[int]) -> None:
    assert rules(job(2), reducing_steps=np.array(steps)) == []


def test_numbers_that_are_not_known_are_not_uneven() -> None:
    assert rules(job(2)) == []


@pytest.mark.slow
@pytest.mark.ranks
def test_uneven_inputs_under_join(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    program.write_text(JOINED, "utf-8")
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(tmp_path / "runs"), "--", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (run,) = allpull.open_runs(tmp_path / "runs")
    named = [one for one in allpull.explain(run).findings if one.rule == "uneven-steps"]
    assert [one.ranks for one in named] == [[1]]
    assert named[0].evidence[0].value == pytest.approx(1.2)
