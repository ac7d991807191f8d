"""Ranks that compute longer on larger batches are told from ranks that are late for another reason."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.explain.made import STEPS, found, hosts_of, job, rules
from tests.replay.windows import late, rotating

import allpull
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.batch_work import batch_work
from allpull.explain.rules.uneven_batches import evenly_sized
from allpull.replay.engine import replay
from allpull.replay.window import Window
from allpull.rundir.read.run import read_run

EIGHT = Machine(hosts=hosts_of(8))
USUAL = 32 * 128  # elements of a batch


def padded(*, per_element_s: float, sizes: np.ndarray | None = None, **more) -> Window:
    """A job whose forward takes ``per_element_s`` per element; sizes are uniform from half to 1.5 times the usual."""
    if sizes is None:
        sizes = np.random.default_rng(3).uniform(0.5, 1.5, (STEPS, 8)) * USUAL
    longer = more.pop("forward", 0.0) + per_element_s * sizes
    return replace(job(8, forward=longer, **more), elements=sizes)


def test_what_batches_of_many_sizes_cost_is_named_and_priced() -> None:
    """Of eight uniform draws the largest is 7/18 of the range above the mean: 15.6 ms where a batch takes 40 ms."""
    window = padded(per_element_s=0.040 / USUAL)
    (finding,) = found(window, EIGHT).findings
    assert finding.rule == "uneven-batches"
    expected_s = float((window.elements.max(axis=1) - window.elements.mean(axis=1)).mean()) * 0.040 / USUAL
    assert finding.loss_s_per_step == pytest.approx(expected_s, rel=0.1)
    assert expected_s == pytest.approx(0.0156, rel=0.1)
    assert finding.ranks == []


def test_what_does_not_depend_on_the_batch_is_not_evened_out() -> None:
    """The optimizer takes 20 ms after any batch, and after equal ones no rank is late."""
    window = padded(per_element_s=0.040 / USUAL, optimizer=0.020)
    sizes = window.elements.mean(axis=1, keepdims=True) * np.ones((1, 8))
    equal = padded(per_element_s=0.040 / USUAL, optimizer=0.020, sizes=sizes)
    work = batch_work(window, EIGHT)
    evened_s = replay(evenly_sized(window, work.by_phase)).total_s
    assert evened_s == pytest.approx(replay(equal).total_s, rel=0.005)


def test_batches_that_all_ranks_take_from_one_group_are_no_fault() -> None:
    sizes = np.random.default_rng(3).uniform(0.5, 1.5, (STEPS, 1)) * np.full((1, 8), USUAL)
    assert rules(padded(per_element_s=0.040 / USUAL, sizes=sizes), EIGHT) == []


@pytest.mark.parametrize("seed", range(20))
def test_batches_whose_size_costs_nothing_are_no_fault(seed: int) -> None:
    sizes = np.random.default_rng(seed).uniform(0.5, 1.5, (STEPS, 8)) * USUAL
    assert rules(padded(per_element_s=0.0, sizes=sizes, seed=seed), EIGHT) == []


def test_other_causes_keep_their_names_where_batches_vary() -> None:
    turn = padded(per_element_s=0.0, forward=rotating(8, STEPS, by_s=0.02))
    assert rules(turn, EIGHT) == ["rotating-imbalance"]
    slow = padded(per_element_s=0.0, backward=late(8, STEPS, rank=3, by_s=0.02))
    assert rules(slow, EIGHT) == ["slow-rank"]
    both = padded(per_element_s=0.040 / USUAL, backward=late(8, STEPS, rank=3, by_s=0.05))
    assert set(rules(both, EIGHT)) == {"slow-rank", "uneven-batches"}


def test_where_sizes_are_not_known_ranks_are_late_in_turn() -> None:
    assert rules(replace(padded(per_element_s=0.040 / USUAL), elements=None), EIGHT) == ["rotating-imbalance"]


def test_batches_of_different_numbers_of_samples_are_named_so() -> None:
    """Two ranks draw from 8 to 24 samples, 1 ms each: the larger is 1/6 of the range above the mean, 2.7 ms."""
    samples = np.random.default_rng(3).integers(8, 25, (STEPS, 2)).astype(float)
    window = replace(job(2, forward=1e-3 * samples), samples=samples)
    (finding,) = found(window, Machine(hosts=hosts_of(2))).findings
    assert finding.rule == "uneven-batches"
    assert "more samples than the mean" in finding.title
    assert finding.loss_s_per_step == pytest.approx(float(1e-3 * np.ptp(samples, axis=1).mean() / 2), rel=0.1)


PROGRAM = """
import random, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

how = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
chosen = random.Random(0 if how == "grouped" else dist.get_rank())
lengths = [chosen.choice((16, 32, 64, 128)) if how != "fixed" else 64 for _ in range(60)]
texts = [torch.randint(0, 100, (length,)) for length in lengths for _ in range(8)]


def pad(samples):
    ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"labels": torch.zeros(len(samples)), "input_ids": ids}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, ids):
        time.sleep(ids.numel() * 0.00004)  # 5 to 41 ms: work that two busy cores do not disturb
        return self.head(self.words(ids).mean(1))


model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(texts, batch_size=8, collate_fn=pad):
    loss = nn.functional.mse_loss(model(batch["input_ids"])[:, 0], batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "is_named", "varies"), [("random", True, True), ("grouped", False, True), ("fixed", False, False)]
)
def test_real_padded_texts(tmp_path: Path, how: str, is_named: bool, varies: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(tmp_path / "runs"), "--"]
    done = subprocess.run(
        [*command, str(program), how], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    directory = next((tmp_path / "runs").iterdir())
    elements = read_run(directory).steps["elements"].drop_nulls()
    assert set(elements.unique()) == ({128, 256, 512, 1024} if varies else {512})
    assert (elements.len() == 2) == (not varies), "texts of one length are told once on each rank"
    findings = {one.rule: one for one in allpull.explain(allpull.open_run(directory)).findings}
    assert ("uneven-batches" in findings) == is_named
    assert not is_named or "rotating-imbalance" not in findings
