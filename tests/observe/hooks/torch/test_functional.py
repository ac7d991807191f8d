"""Functional collectives of real ranks: those of DTensor are matched, and waited for where they are used first."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from tests.observe.hooks.conftest import LOOP, Watch, Watched, plain, torchrun

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow]

LATE_MS = 40

TENSOR_PARALLEL = """
import atexit, time, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
atexit.register(dist.destroy_process_group)  # else Gloo's threads may abort the process as it ends
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(20, 8), torch.randint(0, 3, (20,)))
loader = DataLoader(data, batch_size=4)
net = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 8)), nn.Linear(8, 3))
parallelize_module(net, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "1.1": RowwiseParallel()})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
net[0].register_forward_hook(lambda *_: time.sleep(LATE_MS / 1000 if rank == 1 else 0))
model, losses = net, []
"""

SHOWN = """
if rank == 0:
    print(losses)
"""


def calls(run: Watched, rank: int) -> list[tuple[str, int, str | None, int | None, float | None]]:
    """Operation, bytes, phase, number, and ms that the rank was blocked, of all collectives in the steps of a rank."""
    kinds = {kind.id: kind for kind in run.events("collective_kind", rank)}
    found = []
    for step in run.steps(rank):
        for kind, number, _, blocked_ns, _ in step.collectives or ():
            assert kind is not None
            one = kinds[kind]
            blocked_ms = None if blocked_ns is None else blocked_ns / 1e6
            found.append((one.op, one.size_bytes, one.inside, number, blocked_ms))
    return found


def test_a_late_rank_of_a_tensor_parallel_network_is_waited_for_in_its_collective(watched: Watch) -> None:
    run = watched(TENSOR_PARALLEL.replace("LATE_MS", str(LATE_MS)) + LOOP, start=torchrun(2))
    assert run.code == 0, run.err
    first, second = ([call for call in calls(run, rank) if call[2] == "forward"] for rank in (0, 1))
    assert [call[:4] for call in first] == [call[:4] for call in second]
    assert [call[:3] for call in first] == [("all_reduce", 4 * 8 * 4, "forward")] * 10
    blocked_ms = [[call[4] for call in each if call[4] is not None] for each in (first, second)]
    assert [len(each) for each in blocked_ms] == [10, 10]
    assert median(blocked_ms[0]) > 0.7 * LATE_MS
    assert median(blocked_ms[1]) < 0.5 * LATE_MS


def test_a_compiled_network_computes_the_same_as_without_observation(watched: Watch, tmp_path: Path) -> None:
    source = (
        TENSOR_PARALLEL.replace("LATE_MS", "0") + 'model = torch.compile(net, backend="aot_eager")\n' + LOOP + SHOWN
    )
    run = watched(source, start=torchrun(2))
    assert run.code == 0, run.err
    assert run.out == plain(source, tmp_path, start=torchrun(2))


def test_every_function_is_recorded_as_its_operation_with_the_bytes_of_the_whole(watched: Watch) -> None:
    run = watched(
        """
import atexit, torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
atexit.register(dist.destroy_process_group)
mesh = init_device_mesh("cpu", (2,))
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.randn(2, 4)).sum().backward()
    with torch.no_grad():
        x = torch.ones(4, 4)
        (functional.all_gather_tensor(x, 0, mesh).view(-1) + 1).sum().item()  # another view waits
        functional.all_gather_tensor(x, 1, (mesh, 0))  # waits itself
        functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) + 1
        functional.all_to_all_single(x, None, None, mesh) + 1
        functional.broadcast(x, 1, mesh) + 1
    optimizer.step()
""",
        start=torchrun(2),
    )
    assert run.code == 0, run.err
    for rank in (0, 1):
        of_step = [(operation, size, blocked is None) for operation, size, _, _, blocked in calls(run, rank)][:5]
        assert sorted(of_step) == [
            ("all_gather_into_tensor", 128, False),
            ("all_gather_into_tensor", 128, False),
            ("all_to_all_single", 64, False),
            ("broadcast", 64, False),
            ("reduce_scatter_tensor", 64, False),
        ]
        assert [kind.root for kind in run.events("collective_kind", rank) if kind.op == "broadcast"] == [1]
