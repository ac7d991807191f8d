"""Settings of DDP that cost something and are not needed are named; those that are needed, or free, are not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.explain.made import STEPS, crowded, found, hosts_of, job, ring, rules
from tests.replay.windows import Call, late

import allpull
from allpull.explain.evidence.ddp_settings import (
    CommHook,
    DdpSettings,
    broadcasts_only_buffers,
    comm_hooks,
    ddp_settings,
)
from allpull.explain.evidence.hosts.machine import Machine
from allpull.rundir.read.run import read_run
from allpull.schema.events import DataParallel

EIGHT = Machine(hosts=hosts_of(8))
BUFFERS = DdpSettings(buffers_bytes=4 << 20)
SMALL = DdpSettings(buffers_bytes=10_000)


def broadcast(transfer_s: float) -> Call:
    return Call(use="broadcast in forward", at="forward", root=0, transfer_s=transfer_s)


def with_buffers(*calls: Call, known: bool = True, network: DdpSettings = BUFFERS, **more) -> list[str]:
    window = job(8, calls=list(calls), **more)
    return rules(window, EIGHT, networks=[network], broadcasts_only_buffers=known)


def test_the_broadcast_of_buffers_is_priced() -> None:
    window = job(8, calls=[broadcast(0.006)])
    (finding,) = found(window, EIGHT, networks=[BUFFERS], broadcasts_only_buffers=True).findings
    assert finding.rule == "broadcast-buffers"
    assert finding.loss_s_per_step == pytest.approx(0.006, rel=0.1)
    assert finding.gain.low > 1
    assert "4 MiB" in finding.title


def test_small_buffers_are_priced_on_accelerators_only() -> None:
    assert with_buffers(broadcast(0.006), network=SMALL) == []
    devices = replace(EIGHT, gpus={"node1": ("V100",)}, autocast="float16")
    window = job(8, calls=[broadcast(0.006)])
    assert rules(window, devices, networks=[SMALL], broadcasts_only_buffers=True) == ["broadcast-buffers"]


def test_where_all_ranks_wait_for_cpus_the_price_is_an_upper_bound() -> None:
    window = job(8, calls=[broadcast(0.006)])
    machine = crowded(EIGHT, tuple(range(8)), 0.3)
    findings = found(window, machine, networks=[BUFFERS], broadcasts_only_buffers=True).findings
    assert {one.rule: one.gain.is_at_most for one in findings} == {"cpu-contention": True, "broadcast-buffers": True}


def test_what_ranks_wait_there_for_a_late_rank_is_not_saved() -> None:
    """They wait for it at the next collective: the all-gather of SyncBatchNorm, or the reduction."""
    gather = Call(use="all_gather_single in forward", at="forward", transfer_s=0.0003)
    slow = late(8, STEPS, rank=0, by_s=0.02)
    assert with_buffers(broadcast(0.0003), gather, optimizer=slow) == ["slow-rank"]
    assert with_buffers(broadcast(0.0003), optimizer=slow) == ["slow-rank"]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"known": False}, id="the program broadcasts in forward, too"),
        pytest.param({"network": DdpSettings(buffers_bytes=0)}, id="no buffers, or none are broadcast"),
    ],
)
def test_other_broadcasts_are_not_blamed_on_ddp(given) -> None:
    assert "broadcast-buffers" not in with_buffers(broadcast(0.006), **given)


def test_a_cheap_broadcast_is_no_finding() -> None:
    assert with_buffers(broadcast(0.0003)) == []


@pytest.mark.parametrize(
    ("networks", "advised"),
    [
        ([DdpSettings(unused_bytes=0, checked_passes=11)], True),
        ([DdpSettings(unused_bytes=0, checked_passes=11), DdpSettings()], True),
        ([DdpSettings(unused_bytes=80, checked_passes=11)], False),
        ([DdpSettings(unused_bytes=0, checked_passes=11), DdpSettings(unused_bytes=4, checked_passes=11)], False),
        ([DdpSettings(unused_bytes=0, checked_passes=1)], False),
        ([DdpSettings()], False),
        ([], False),
    ],
)
def test_looking_for_unused_parameters_is_needless_where_there_are_none(networks, advised: bool) -> None:
    findings = found(job(8), EIGHT, networks=networks).findings
    assert [one.rule for one in findings] == ["find-unused-parameters"] * advised
    assert all(one.advice and one.gain is None for one in findings)


PROGRAM = """
import sys
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8) if "batch" in how else nn.GroupNorm(2, 8)
        if "table" in how:
            self.register_buffer("table", torch.zeros(8_000_000))
        if "unused" in how:
            self.unused = nn.Linear(4, 4)
        self.broadcasts = "own" in how

    def forward(self, x):
        if self.broadcasts:
            dist.broadcast(torch.zeros(8), src=0)
        return self.norm(self.layer(x))


models = [nn.parallel.DistributedDataParallel(Net(how), find_unused_parameters="find" in how) for how in sys.argv[1:]]
optimizer = torch.optim.SGD([one for model in models for one in model.parameters()], lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    for model in models:
        model(torch.randn(4, 3, 12, 12)).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("networks", "only_buffers", "named"),
    [
        pytest.param(
            {"batch table find": DdpSettings(buffers_bytes=32_000_072, unused_bytes=0, checked_passes=2)},
            True,
            {"broadcast-buffers", "find-unused-parameters"},
            id="both are named",
        ),
        pytest.param(
            {"batch table own find unused": DdpSettings(buffers_bytes=32_000_072, unused_bytes=80, checked_passes=2)},
            False,
            set(),
            id="broadcasts of its own, and parameters that are unused",
        ),
        pytest.param(
            {"batch": DdpSettings(buffers_bytes=72), "group": DdpSettings()},
            True,
            set(),
            id="small buffers, and none",
        ),
    ],
)
def test_real_ranks(tmp_path: Path, networks: dict[str, DdpSettings], only_buffers: bool, named: set[str]) -> None:
    """Each of ``networks`` is described by words, and recorded as it says."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(tmp_path / "runs"), "--"]
    done = subprocess.run(
        [*command, str(program), *networks], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    directory = next((tmp_path / "runs").iterdir())
    run = read_run(directory)
    recorded = ddp_settings(run)
    assert tuple(replace(one, buckets=0, gradients_bytes=()) for one in recorded) == tuple(networks.values())
    for how, one in zip(networks, recorded, strict=True):
        assert one.buckets == 1
        unused = [16, 64] if "unused" in how else []
        assert sorted(one.gradients_bytes) == sorted([32, 32, 32, 864, *unused])
    assert broadcasts_only_buffers(run, recorded) == only_buffers
    explained = allpull.explain(allpull.open_run(directory))
    rules_found = {one.rule for one in explained.findings}
    if any(note.startswith("DDP broadcasts") for note in explained.notes):
        rules_found.add("broadcast-buffers")  # on a busy machine it may be too uncertain for a finding
    assert rules_found & {"broadcast-buffers", "find-unused-parameters"} == named


def test_the_time_of_a_communication_hook_is_that_of_a_step_of_the_median_rank() -> None:
    def log(*known: tuple[int, int | None]) -> SimpleNamespace:
        hook = {"hook": "slowly", "find_unused_parameters": False, "broadcast_buffers": True, "buffers_bytes": 0}
        events = [
            DataParallel(
                kind="data_parallel", step=step, network=0, hook_calls=3 * step, hook_ns=spent_ns, t_ns=0, **hook
            )
            for step, spent_ns in known
        ]
        return SimpleNamespace(data_parallel=tuple(events))

    killed = log((4, 9_000_000))
    run: Any = SimpleNamespace(
        events={0: log((4, 10_000_000), (24, 50_000_000)), 1: log((4, 0), (24, 80_000_000)), 2: killed}
    )
    assert comm_hooks(run) == (CommHook(name="slowly", seconds=pytest.approx(0.003), calls=3.0),)
    assert comm_hooks(SimpleNamespace(events={0: killed})) == ()


@pytest.mark.parametrize(("largest", "expected"), [(0.98, []), (0.1, ["no-overlap"])])
def test_smaller_buckets_are_not_advised_where_one_gradient_is_most(largest: float, expected: list[str]) -> None:
    """A table of embeddings is ready last, and no bucket divides it."""
    window = job(8, bucket_s=(0.006, 0.0001), lead_s=(0.0003, 0.0))
    assert window.reductions is not None
    assert window.reductions.size_bytes is not None
    total = int(window.reductions.size_bytes.sum())
    others = [int(total * (1 - largest)) // 20] * 20
    network = DdpSettings(gradients_bytes=(*others, total - sum(others)))
    assert rules(window, replace(EIGHT, connections=ring(4, busy_share=0.1)), networks=[network]) == expected
