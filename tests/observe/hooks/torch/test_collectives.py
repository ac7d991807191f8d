"""Ranks that a real torchrun starts: collectives are matched, late ranks are seen where they are late."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median

import pytest
from tests.observe.hooks.conftest import Watch, plain, torchrun

from allpull.rundir.job_file import WatchOptions

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow]

PARALLEL = """
import atexit, time, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
atexit.register(dist.destroy_process_group)  # else Gloo's threads may abort the process as it ends
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(120, 8), torch.randint(0, 3, (120,)))
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, batch_size=6, sampler=sampler)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

LATE_MS = 40


def test_a_late_rank_shows_in_the_hidden_broadcast_and_never_as_forward(watched: Watch) -> None:
    run = watched(
        PARALLEL
        + f"""
for x, y in loader:
    if rank == 1:
        time.sleep({LATE_MS / 1000})
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        start=torchrun(2),
    )
    assert run.code == 0, run.err
    punctual, late = run.steps(0)[2:], run.steps(1)[2:]
    waited = median((step.collective_ns or 0) / 1e6 for step in punctual)
    assert 0.8 * LATE_MS < waited < 3 * LATE_MS
    assert median((step.forward_ns or 0) / 1e6 for step in punctual) < LATE_MS / 2
    assert median((step.collective_ns or 0) / 1e6 for step in late) < LATE_MS / 2
    kinds = {kind.id: kind for kind in run.events("collective_kind")}
    for step in punctual:
        assert step.collectives is not None
        kind, _, begin, blocked, end = step.collectives[0]
        assert kind is not None
        assert (kinds[kind].op, kinds[kind].inside, kinds[kind].root) == ("broadcast", "forward", 0)
        assert end == (begin or 0) + (blocked or 0)
        assert (end or 0) <= (step.arrival_ns or 0) <= (step.done_ns or 0)
        assert end


def test_losses_of_ranks_are_the_same_to_the_last_bit(watched: Watch, tmp_path: Path) -> None:
    source = (
        PARALLEL
        + """
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
dist.all_reduce(loss.detach())
if rank == 0:
    print(loss.item().hex())
"""
    )
    assert watched(source, start=torchrun(2)).out == plain(source, tmp_path, start=torchrun(2))


def test_collectives_of_the_program_itself_carry_the_same_numbers_on_all_ranks(watched: Watch) -> None:
    run = watched(
        PARALLEL
        + """
half = dist.new_group([1])
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    later = dist.all_gather_into_tensor(torch.empty(2), loss.detach().reshape(1), async_op=True)
    if rank == 1:
        dist.barrier(group=half)
    later.wait()
    optimizer.step()
gathered = [None, None]
dist.all_gather_object(gathered, rank)
dist.barrier()
""",
        start=torchrun(2),
    )
    assert run.code == 0, run.err

    def seen(rank: int) -> list[tuple[str, int, int, int | None]]:
        kinds = {kind.id: kind for kind in run.events("collective_kind", rank)}
        found = []
        for step in run.steps(rank):
            for kind, number, *_ in step.collectives or ():
                assert kind is not None
                one = kinds[kind]
                if one.group_ranks == 2:
                    found.append((one.op, one.size_bytes, one.group_ranks, number))
        return found

    assert seen(0) == seen(1)
    operations = [operation for operation, *_ in seen(0)]
    assert operations.count("all_reduce") == 10 * 6
    assert operations.count("all_gather_into_tensor") == 10
    lone = [kind for kind in run.events("collective_kind", 1) if kind.group_ranks == 1]
    assert [kind.op for kind in lone] == ["barrier"]


def test_steps_that_keep_their_gradients_have_no_arrival(watched: Watch) -> None:
    run = watched(
        PARALLEL
        + """
for i, (x, y) in enumerate(loader):
    if i % 2 == 0:
        with model.no_sync():
            model(x).sum().backward()
    else:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
for _ in range(2):
    with model.no_sync():
        model(x).sum().backward()
    optimizer.step()
""",
        start=torchrun(2),
    )
    steps = run.steps()
    assert [step.backward_passes for step in steps] == 5 * [2] + 2 * [1]
    assert all(step.arrival_ns for step in steps[:5])
    assert not any(step.arrival_ns for step in steps[5:])


def test_what_only_rank_0_does_makes_the_others_wait_in_their_barrier(watched: Watch) -> None:
    run = watched(
        PARALLEL
        + f"""
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                model.module(x)
                time.sleep({LATE_MS / 10000})
        torch.save(net.state_dict(), "/dev/null")
    dist.barrier()
""",
        start=torchrun(2),
    )
    assert run.code == 0, run.err
    assert [span.name for span in run.events("span", 0)] == ["evaluation", "checkpoint"] * 2
    assert not run.events("span", 1)
    boundary = run.steps(1)[10]
    kinds = {kind.id: kind.op for kind in run.events("collective_kind", 1)}
    waits = {kinds[one[0]]: one[3] for one in boundary.collectives or () if one[0] is not None}
    assert (waits["barrier"] or 0) / 1e6 > 0.8 * LATE_MS


@pytest.mark.slow
def test_profiler_windows_open_at_the_same_steps_on_all_ranks(watched: Watch) -> None:
    run = watched(
        PARALLEL
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
""",
        start=torchrun(2),
        watch=WatchOptions(trace_every=8, trace_steps=2, trace_first=5),
    )
    assert run.code == 0, run.err
    assert "USDT" not in run.err
    for rank in (0, 1):
        windows = run.events("trace", rank)
        assert [(window.first_step, window.steps) for window in windows] == [(5, 2), (13, 2)]
        assert [step.step for step in run.steps(rank) if "traced" in step.tags] == [5, 6, 7, 13, 14, 15]
        for window in windows:
            with gzip.open(run.directory / window.file) as file:
                names = [event.get("name") for event in json.load(file)["traceEvents"]]
            assert names.count("gloo:all_reduce") == 2
        assert [bucket.sizes_bytes for bucket in run.events("buckets", rank)] == [[4 * (8 * 16 + 16 + 32 + 16 * 3 + 3)]]
