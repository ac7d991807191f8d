"""Ranks that are bound to few CPUs: where all wait for one, where one rank has fewer than the others, and real ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.explain.made import STEPS, crowded, found, job
from tests.explain.rules.test_remedies import record
from tests.replay.windows import late, rotating

import allpull
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.start import start_of

BOTH_ON_ONE = {0: frozenset({5}), 1: frozenset({5})}


def test_ranks_that_are_bound_to_a_few_cpus_of_their_host_are_told_so() -> None:
    """As `srun torchrun --nproc-per-node=2` does without --cpus-per-task: more CPUs are the remedy, not fewer ranks."""
    machine = Machine(hosts=("node1",) * 2, cpus={"node1": 1.0}, logical={"node1": 16}, bound=BOTH_ON_ONE)
    start = start_of(record("allpull run -- srun -n 1 torchrun --nproc-per-node=2 train.py"))
    (finding,) = found(job(2), crowded(machine, (0, 1), 0.4), start=start).findings
    assert finding.title.endswith(": they may run on only 1 of the 16 CPUs of node1")
    assert finding.remedy.startswith("let them run on more CPUs: srun --cpus-per-task=16; or ")
    assert [one.value for one in finding.evidence if one.source in {"affinity of the ranks", "host record"}] == [1, 16]


@pytest.mark.parametrize(
    "machine",
    [
        Machine(hosts=("node1",) * 2, logical={"node1": 4}, bound={0: frozenset({0, 1}), 1: frozenset({1, 2})}),
        Machine(hosts=("node1",) * 2, logical={"node1": 4}, bound={0: frozenset({0})}),
        Machine(
            hosts=("node1",) * 2,
            cpus={"node1": 1.5},
            logical={"node1": 4},
            bound={0: frozenset({0}), 1: frozenset({1})},
        ),
    ],
    ids=["most of its CPUs", "of one rank it is not known", "a quota allows less"],
)
def test_a_binding_that_does_not_limit_the_ranks_is_not_blamed(machine: Machine) -> None:
    (finding,) = found(job(2), crowded(machine, (0, 1), 0.4)).findings
    assert "may run on" not in finding.title
    assert not any("may run" in one.what for one in finding.evidence)


def test_a_slow_rank_with_fewer_cpus_than_the_others_is_told_so() -> None:
    """Ranks 1 and 2 share a CPU, 0 and 3 have one each: as many CPUs in each list, but not for each rank."""
    bound = {rank: frozenset({cpu}) for rank, cpu in enumerate((0, 1, 1, 2))}
    machine = Machine(hosts=("node1",) * 4, bound=bound)
    (finding,) = found(job(4, forward=late(4, STEPS, rank=1, by_s=0.02)), machine).findings
    assert finding.ranks == [1]
    assert finding.remedy.startswith("let it run on as many CPUs as the others: ")
    assert [one.value for one in finding.evidence if one.source == "affinity of the ranks"] == [0.5, 1.0]


@pytest.mark.parametrize(("cpus_of_rank_1", "advised"), [({1}, False), ({0}, True), (None, True)])
def test_ranks_with_cpus_of_their_own_are_not_told_to_bind_themselves(
    cpus_of_rank_1: set[int] | None, advised: bool
) -> None:
    """Rank 1 waits for a CPU: where no other rank may use that one, another program does."""
    bound = {rank: frozenset({rank}) for rank in (0, 2, 3)}
    if cpus_of_rank_1 is not None:
        bound[1] = frozenset(cpus_of_rank_1)
    machine = crowded(Machine(hosts=("node1",) * 4, bound=bound), (1,), 0.3)
    (finding,) = found(job(4, forward=late(4, STEPS, rank=1, by_s=0.02)), machine).findings
    assert (finding.rule, finding.ranks) == ("cpu-contention", [1])
    assert ("its own cores" in finding.remedy or "as many CPUs" in finding.remedy) is advised
    assert "check with top what else runs there" in finding.remedy


@pytest.mark.parametrize("is_bound", [True, False])
@pytest.mark.parametrize("command", ["allpull train digits -n 4", "allpull run -n 4 -- train.py"])
def test_ranks_late_in_turn_are_told_to_bind_themselves_unless_they_are_bound(command: str, is_bound: bool) -> None:
    machine = Machine(hosts=("node1",) * 4, bound={rank: frozenset({rank}) for rank in range(4) if is_bound})
    made, start = job(4, forward=rotating(4, STEPS, by_s=0.02)), start_of(record(command))
    (finding,) = found(made, machine, start=start).findings
    assert finding.rule == "rotating-imbalance"
    assert any(how in finding.remedy for how in ("launch.bind", "sched_setaffinity")) is not is_bound
    assert not re.search(r"[,:] ?([,;]|$)", finding.remedy)


PROGRAM = """
import os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
network = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
rows = torch.randn(256, 512)
for step in range(80):
    if step == 2:  # when recording has begun
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    optimizer.zero_grad()
    network(rows).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU is all that there is")
def test_real_ranks_that_bind_themselves_to_one_cpu(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = run_cli("run", "-n", "2", "--out", "runs", "--", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    findings = allpull.open_run(next((tmp_path / "runs").iterdir())).explain().findings
    (waiting,) = (one for one in findings if one.rule == "cpu-contention")
    assert re.search(r": they may run on only 1 of the \d+ CPUs of ", waiting.title)
    assert "let them run on more CPUs: start without taskset, and without os.sched_setaffinity" in waiting.remedy
