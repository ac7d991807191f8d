"""Ranks that exchange no gradients are said to train different models, and nobody else is accused of it."""

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

ACCUSED = "2 ranks in one process group exchange no gradients: they train different models"
GROUP = {"kind": "process_group", "backend": "gloo", "ranks": 2, "unobserved": [], "t_ns": 0}
KIND = {
    "kind": "collective_kind",
    "id": 90,
    "op": "all_reduce",
    "size_bytes": 4,
    "dtype": "float32",
    "group": "0",
    "group_ranks": 2,
    "root": None,
    "inside": None,
    "t_ns": 0,
}


def unrelated(
    folder: Path,
    *,
    events: tuple[dict[str, Any], ...] = (GROUP,),
    called: tuple[int, ...] = (),
    steps: int = 20,
    **step: Any,
) -> allpull.Run:
    """Two ranks that train alone; ``called``: the steps that call collective 90; ``step``: fields of each step."""
    training = even(
        ranks=2,
        steps=steps,
        forward_s=0.01,
        backward_s=0.02,
        buckets=spread(total=1 << 20, count=1),
        wire=Wire(latency_s=0.0, bytes_per_s=1e9),
    )
    run = write(simulate(training), folder, Recording(warmup=0, buckets=False, reductions=False))
    for rank in range(2):
        path = run / f"steps/rank-{rank:05d}.jsonl"
        header, *records = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        header["sources"] = ["networks", "gradients", "collectives", "post-accumulate-hook"]
        for record in records:
            for name in ("arrival_ns", "done_ns", "ready_ns", "reductions"):
                record.pop(name, None)
            record["backward_passes"] = 1
            if record["step"] in called:
                begin = record["begin_ns"]
                record["collectives"] = [[90, record["step"], begin, 10, begin + 10]]
            record.update(step)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *records)), "ascii")
        path = run / f"events/rank-{rank:05d}.jsonl"
        header, *kept = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        kept = [event for event in kept if event["kind"] not in ("buckets", "collective_kind", "epoch")]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *events, *kept)), "ascii")
    return allpull.open_run(run)


def is_accused(run: allpull.Run) -> bool:
    return any(finding.rule == "no-exchange" for finding in allpull.explain(run).findings)


def test_unrelated_trainings(tmp_path: Path) -> None:
    run = unrelated(tmp_path)
    explained = allpull.explain(run)
    assert [finding.title for finding in explained.findings] == [ACCUSED]
    assert explained.healthy is None
    gaps = run.gaps
    assert f"{ACCUSED}, and samples/s is the sum of 2 unrelated trainings" in gaps
    assert not any("not measured, and 'backward' holds them" in gap for gap in gaps)
    assert run.metrics().phases["wait"] == run.metrics().phases["transfer"] == 0.0


def test_a_loss_that_all_ranks_average_is_no_exchange_of_gradients(tmp_path: Path) -> None:
    assert is_accused(unrelated(tmp_path, events=(GROUP, KIND), called=tuple(range(20))))


def test_parameters_that_are_broadcast_once_are_no_exchange_of_gradients(tmp_path: Path) -> None:
    assert is_accused(unrelated(tmp_path, events=(GROUP, {**KIND, "op": "broadcast", "size_bytes": 4096}), called=(0,)))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"events": ()}, id="no process group"),
        pytest.param({"events": (GROUP, {**GROUP, "unobserved": ["mpi4py"]})}, id="a package that exchanges unseen"),
        pytest.param(
            {"events": (GROUP, {**KIND, "size_bytes": 4096}), "called": tuple(range(20))}, id="own all-reduce"
        ),
        pytest.param({"events": (GROUP, {**KIND, "size_bytes": 4096}), "called": (0, 19)}, id="local SGD"),
        pytest.param({"events": (GROUP, {**KIND, "size_bytes": 4096})}, id="called where it is not listed"),
        pytest.param({"collective_ns": 3_000_000}, id="waiting that is not listed"),
        pytest.param({"steps": 9}, id="too few steps"),
        pytest.param({"backward_passes": 0}, id="ranks that do not train"),
        pytest.param(
            {"events": (GROUP, {"kind": "switched_off", "reason": "", "part": "arrival", "t_ns": 0})},
            id="hooks that failed",
        ),
        pytest.param(
            {"events": (GROUP, {"kind": "buckets", "step": 0, "sizes_bytes": [4], "t_ns": 0})}, id="DDP was made"
        ),
        pytest.param(
            {"events": (GROUP, {"kind": "watching", "on": False, "step": 12, "t_ns": 0})}, id="steps not recorded"
        ),
    ],
)
def test_nobody_is_accused_where_gradients_may_be_exchanged(tmp_path: Path, given: dict[str, Any]) -> None:
    assert not is_accused(unrelated(tmp_path, **given))


PROGRAM = """
import sys
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
how = sys.argv[1]
model = nn.Linear(64, 64)
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    if how == "average":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    if how == "ring" and step % 7 == 0:
        for parameter in model.parameters():
            got = torch.empty_like(parameter)
            works = [dist.isend(parameter.data, 1 - dist.get_rank()), dist.irecv(got, 1 - dist.get_rank())]
            for work in works:
                work.wait()
            parameter.data.add_(got).div_(2)
    optimizer.step()
    if how == "sparse" and step % 10 == 9:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data.div_(2)
    dist.all_reduce(loss.detach())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize(("how", "accused"), [("alone", True), ("average", False), ("ring", False), ("sparse", False)])
def test_real_ranks(tmp_path: Path, how: str, accused: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "allpull",
        "run",
        "-n",
        "2",
        "--out",
        str(tmp_path / "runs"),
        "--",
        str(program),
        how,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    run = allpull.open_run(next((tmp_path / "runs").iterdir()))
    assert is_accused(run) == accused
    assert any(ACCUSED in gap for gap in run.gaps) == accused
