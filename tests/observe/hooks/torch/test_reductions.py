"""Every backward pass that reduces is recorded, of every network, whichever of its parameters are trained just then."""

from __future__ import annotations

import json

import pytest
from tests.observe.hooks.conftest import Watch, Watched

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow]

ALONE = """
import atexit, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
atexit.register(dist.destroy_process_group)
torch.manual_seed(0)
x = torch.randn(6, 8)
"""
"""A process group of one rank: DDP and its hooks work as with more."""

TWO_NETWORKS = (
    ALONE
    + """
maker = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
judge = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
make, look = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (maker, judge))
"""
)


def check(run: Watched, steps: int) -> None:
    """The program ended well, no part of observation stopped, and all its steps are there."""
    assert run.code == 0, run.err
    assert not run.events("switched_off")
    assert len(run.steps()) == steps


def test_parameters_that_are_frozen_in_turn_do_not_stop_the_recording(watched: Watch) -> None:
    """One DDP module with two parts that are trained in turn, as Lightning's ``toggle_optimizer`` has it."""
    run = watched(
        ALONE
        + """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(8, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.judge(self.maker(x))
both = DistributedDataParallel(Both(), find_unused_parameters=True)
parts = [both.module.maker, both.module.judge]
optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
for step in range(20):
    for number, part in enumerate(parts):
        for other in parts:
            for parameter in other.parameters():
                parameter.requires_grad_(other is part)
        optimizers[number].zero_grad()
        both(x).sum().backward()
        optimizers[number].step()
"""
    )
    check(run, 20)
    assert all(len(step.reductions or ()) == 2 for step in run.steps()[6:])
    assert all(step.arrival_ns for step in run.steps()[6:])


def test_a_network_of_which_other_parameters_are_trained_later_is_learned_again(watched: Watch) -> None:
    run = watched(
        ALONE
        + """
layers = [nn.Linear(8, 8) for _ in range(4)]
net = DistributedDataParallel(nn.Sequential(*layers), find_unused_parameters=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(24):
    if step == 12:
        for parameter in (*layers[0].parameters(), *layers[1].parameters()):
            parameter.requires_grad_(False)
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    check(run, 24)
    known = [step.arrival_ns is not None for step in run.steps()]
    assert known == [True] * 12 + [False] + [True] * 11  # the first without its last parameters is not known


def test_each_pass_of_accumulated_gradients_is_listed_where_it_reduces(watched: Watch) -> None:
    run = watched(
        ALONE
        + """
net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(10):
    for part in range(4):
        if step % 2 and part < 2:
            with net.no_sync():
                net(x).sum().backward()
        else:
            net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    check(run, 10)
    for step in run.steps():
        assert step.backward_passes == 4
        assert len(step.reductions or ()) == (2 if step.step % 2 else 4)
        ends = [step.begin_ns]
        for network, begin, done, *spent_and_ready in step.reductions or ():
            assert network == 0
            assert ends[-1] <= begin <= spent_and_ready[-1] <= done <= step.end_ns
            assert sum(spent_and_ready[:5]) <= done - step.begin_ns
            ends.append(done)


def test_every_network_has_its_number_in_steps_and_buckets(watched: Watch) -> None:
    run = watched(
        TWO_NETWORKS
        + """
for step in range(12):
    look.zero_grad()
    (judge(x) - judge(maker(x).detach())).sum().backward()
    look.step()
    make.zero_grad()
    judge(maker(x)).sum().backward()  # through the judge, which reduces too
    make.step()
"""
    )
    check(run, 12)
    for step in run.steps()[1:]:
        assert [one[0] for one in step.reductions or ()] == [1, 0, 1]
        _, second, third = step.reductions or ()
        assert second[1:3] == third[1:3]
        assert step.arrival_ns == max(second[-1], third[-1])
    sizes = {one.network: sum(one.sizes_bytes) for one in run.events("buckets")}
    assert sizes == {0: 4 * 2 * (64 + 8), 1: 4 * (64 + 8 + 8 + 1)}
    for one in run.events("buckets"):
        assert sorted(one.gradients_bytes) == sorted(4 * size for size in ([64, 8, 64, 8], [64, 8, 8, 1])[one.network])


def test_a_pass_that_ddp_does_not_reduce_has_no_arrival_although_another_network_could(watched: Watch) -> None:
    """``no_sync`` counts for forward passes: a backward pass outside of it does not reduce what was made within."""
    run = watched(
        TWO_NETWORKS
        + """
for step in range(8):
    with maker.no_sync():
        out = maker(x)
    out.sum().backward()
    make.step()
    judge(x).sum().backward()
    look.step()
"""
    )
    check(run, 8)
    assert all([one[0] for one in step.reductions or ()] == [1] for step in run.steps())


def test_arrivals_that_fail_take_no_steps_with_them(watched: Watch) -> None:
    run = watched(
        ALONE
        + """
net = DistributedDataParallel(nn.Linear(8, 1))
def refuse(*_):
    raise RuntimeError("no more hooks")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(10):
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook = refuse
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert run.code == 0, run.err
    assert len(run.steps()) == 10
    assert [(one.part, one.reason) for one in run.events("switched_off")] == [
        ("arrival", "RuntimeError: no more hooks")
    ]
    assert not any(step.arrival_ns for step in run.steps()[3:])


@pytest.mark.parametrize("end", ["pass", "del net, optimizer; import gc; gc.collect()"])
def test_the_time_inside_a_communication_hook_is_recorded(watched: Watch, end: str) -> None:
    """It is the program's own function everywhere else; networks made in a function are gone at the end."""
    run = watched(
        ALONE
        + """
import time
net = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def slowly(state, bucket):
    assert state == "mine"
    time.sleep(0.01)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
net.register_comm_hook("mine", slowly)
assert net._comm_hooks == [(slowly, "mine")]
for step in range(24):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
        + end
    )
    check(run, 24)
    first, last = run.events("data_parallel")
    assert (first.step, last.step) == (4, 24)
    assert (first.hook, last.hook) == ("slowly", "slowly")
    assert (first.hook_calls, last.hook_calls) == (4, 24)
    assert 0.01 <= (last.hook_ns - first.hook_ns) / 20e9 < 0.05
    assert last.hook_ns <= sum(step.backward_ns for step in run.steps())


def test_what_a_hook_waits_for_is_the_reduction_and_no_call_beside_it(watched: Watch) -> None:
    """A blocking collective, as the first example of many; its time counts once, from the arrival on."""
    run = watched(
        ALONE
        + """
import json, time
net = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
called = []
def blocking(state, bucket):
    called.append(time.monotonic_ns())
    dist.all_reduce(bucket.buffer())
    time.sleep(0.02)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
net.register_comm_hook(None, blocking)
for step in range(12):
    optimizer.zero_grad()
    net(torch.randn(6, 64)).sum().backward()
    dist.all_reduce(torch.ones(1))
    optimizer.step()
print(json.dumps(called))
"""
    )
    check(run, 12)
    steps, called = run.steps(), json.loads(run.out)
    assert [len(step.collectives or ()) for step in steps] == 12 * [1]
    for step, moment in zip(steps[1:], called[1:], strict=True):
        assert moment <= step.arrival_ns
        assert step.done_ns - step.arrival_ns >= 20_000_000
        assert step.backward_ns >= step.done_ns - step.arrival_ns


def test_a_hook_that_comes_late_is_recorded_at_the_end(watched: Watch) -> None:
    run = watched(
        ALONE
        + """
net = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def at_once(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
for step in range(12):
    if step == 8:
        net.register_comm_hook(None, at_once)
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
    )
    check(run, 12)
    first, last = run.events("data_parallel")
    assert (first.hook, last.hook, last.hook_calls) == (None, "at_once", 4)


def test_a_bucket_is_ready_when_its_hook_calls_a_first_collective(watched: Watch) -> None:
    """What a hook does before is work of its rank. One that calls none of torch's tells nothing of that."""
    run = watched(
        ALONE
        + """
import json, time
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
net = DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02)
alone = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD([*net.parameters(), *alone.parameters()], lr=0.01)
went = []
def slowly(state, bucket):
    time.sleep(0.005)
    before = time.monotonic_ns()
    future = allreduce_hook(None, bucket)
    went[-1].append((before, time.monotonic_ns()))
    time.sleep(0.005)
    return future
def nothing(state, bucket):
    time.sleep(0.005)
    went[-1].append((time.monotonic_ns(), 0))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
net.register_comm_hook(None, slowly)
alone.register_comm_hook(None, nothing)
for step in range(12):
    optimizer.zero_grad()
    network = net if step < 10 else alone
    went.append([])
    network(torch.randn(6, 64)).sum().backward()
    optimizer.step()
print(json.dumps(went))
"""
    )
    check(run, 12)
    went, steps = json.loads(run.out), run.steps()
    assert len(went[9]) > 1
    for sent, step in zip(went[:10], steps, strict=False):
        before, after = sent[-1]
        assert before <= step.arrival_ns <= after
        assert all(one[0] <= ready <= one[1] for one, ready in zip(sent, step.ready_ns or (), strict=False))
    assert all(step.ready_ns is not None and len(step.ready_ns) == len(went[9]) for step in steps[4:10])
    assert all(step.arrival_ns < sent[-1][0] for sent, step in zip(went[10:], steps[10:], strict=True))
