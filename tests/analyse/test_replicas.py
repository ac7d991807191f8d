"""Replicas that part are found by the digests that ranks wrote: which rank, from which step on, and in which tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from allpull.analyse.replicas import gaps_of_replicas, replicas
from allpull.rundir.read.events import EventLog
from allpull.schema.digest_events import Replica, ReplicaTensors

NAMES = ["conv.weight", "fc.weight", "fc.bias"]
MakeLog = Callable[..., EventLog]


@pytest.fixture
def logs(make_log: MakeLog) -> Callable[..., dict[int, EventLog]]:
    """``logs({rank: {step: "abc"}})``: a digest per parameter and step, one letter each; buffers likewise."""

    def made(
        parameters: Mapping[int, Mapping[int, str]],
        buffers: Mapping[int, str] | None = None,
        names: Sequence[str] = NAMES,
        sharded: int = 0,
    ) -> dict[int, EventLog]:
        named = ReplicaTensors(
            kind="replica_tensors", step=0, parameters=[*names], buffers=["mean"], sharded=sharded, t_ns=0
        )
        return {
            rank: make_log(
                replica_tensors=(named,),
                replicas=tuple(
                    Replica(
                        kind="replica",
                        step=step,
                        parameters="".join(letter * 8 for letter in letters),
                        buffers=(buffers or {}).get(rank, "0") * 8,
                        t_ns=step,
                    )
                    for step, letters in of_rank.items()
                ),
            )
            for rank, of_rank in parameters.items()
        }

    return made


def test_a_run_without_digests_says_nothing(make_log: MakeLog) -> None:
    assert replicas({0: make_log(), 1: make_log()}) is None
    assert list(gaps_of_replicas(None)) == []


def test_equal_replicas_agree_at_the_steps_that_two_ranks_reached(logs: Callable[..., dict[int, EventLog]]) -> None:
    """Rank 1 was killed after step 20: its last steps are not compared, and nothing is wrong."""
    same = {10: "abc", 20: "bcd", 30: "cde"}
    found = replicas(logs({0: same, 1: {10: "abc", 20: "bcd"}}))
    assert found is not None
    assert (found.checked, found.ranks, found.differ, found.buffers_differ) == (2, 2, [], [])
    assert list(gaps_of_replicas(found)) == []


def test_the_rank_the_step_and_the_first_tensor_are_named_once(logs: Callable[..., dict[int, EventLog]]) -> None:
    """Most ranks are right; a rank that parts later is another finding, and buffers are told apart."""
    good = {10: "abc", 20: "bcd", 30: "cde"}
    found = replicas(
        logs({0: good, 1: good, 2: {10: "abc", 20: "b0d", 30: "c00"}, 3: {**good, 30: "0de"}}, buffers={3: "1"})
    )
    assert found is not None
    assert [(one.rank, one.step, one.tensor, one.tensors) for one in found.differ] == [
        (2, 20, "fc.weight", 1),
        (3, 30, "conv.weight", 1),
    ]
    assert [(one.rank, one.step) for one in found.buffers_differ] == [(3, 10)]
    (gap,) = gaps_of_replicas(found)
    assert gap.ranks == (2, 3)
    assert "step 20 in fc.weight of rank 2" in gap.text


def test_of_two_ranks_the_first_is_the_measure(logs: Callable[..., dict[int, EventLog]]) -> None:
    """As of two that began with different seeds: nothing says which one is right."""
    found = replicas(logs({0: {10: "abc"}, 1: {10: "def"}}))
    assert found is not None
    assert [(one.rank, one.tensors) for one in found.differ] == [(1, 3)]
    (gap,) = gaps_of_replicas(found)
    assert "rank 1 has other parameters than rank 0" in gap.text


def test_tensors_are_compared_by_name_and_shards_are_no_replicas(logs: Callable[..., dict[int, EventLog]]) -> None:
    first, second = logs({0: {10: "ab"}}, names=["x", "y"]), logs({1: {10: "ba"}}, names=["y", "x"], sharded=7)
    found = replicas({**first, **second})
    assert found is not None
    assert (found.differ, found.checked, found.sharded) == ([], 1, 7)
    (gap,) = gaps_of_replicas(found)
    assert gap.text.startswith("7 parameters are sharded")


def test_ranks_that_never_met_at_a_step_were_not_compared(logs: Callable[..., dict[int, EventLog]]) -> None:
    (gap,) = gaps_of_replicas(replicas(logs({0: {10: "abc"}, 1: {20: "abc"}})))
    assert gap.kind == "replicas"
    assert "not compared" in gap.text


PROGRAM = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, init_sync = dist.get_rank(), sys.argv[1] == "sync"
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
model[3].bias.requires_grad_(False)
network = DistributedDataParallel(model, init_sync=init_sync, broadcast_buffers=False)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
for step in range(12):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("way", ["sync", "no-sync"])
def test_a_missing_broadcast_of_a_real_script_is_caught_with_rank_and_step(tmp_path: Path, way: str) -> None:
    """Ranks with seeds of their own, and DDP that does not make them equal; batch statistics differ either way."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["run", "-n", "2", "--out", str(tmp_path / "runs"), "--set", "watch.check_replicas=5", "--", "program.py"]
    done = subprocess.run(
        [sys.executable, "-m", "allpull", *words, way], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    shown = subprocess.run(
        [sys.executable, "-m", "allpull", "show", str(run), "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(shown.stdout)["runs"][0]["replicas"]
    assert found["checked"] == 3  # steps 5 and 10, and the end
    named = [(one["rank"], one["step"], one["tensor"]) for one in found["differ"]]
    assert named == ([] if way == "sync" else [(1, 5, "0.weight")])
    assert [(one["rank"], one["tensor"]) for one in found["buffers_differ"]] == [(1, "1.running_mean")]
