"""Our times of arrival and of buckets against DDP's own, which know the same moments independently."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.launch.local import Local
from allpull.observe.recording import arrival
from allpull.observe.recording.arrival import LEARN_STEPS, _cut
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

PROGRAM = """
import json, os, time, torch, torch.distributed as dist
from allpull import marks
torch.set_num_threads(1)
dist.init_process_group('gloo')
rank = dist.get_rank()
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp._set_ddp_runtime_logging_sample_rate(1)
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.05 if rank == 1 else 0)  # rank 1 is late inside backward, after its first buckets
        return grad
head = model[0].register_forward_hook(lambda module, given, out: Late.apply(out))
told = []
for step in range(16):
    with marks.phase('forward'):
        loss = ddp(torch.randn(32, 256)).sum()
    if step:
        told.append(ddp._get_ddp_logging_data().get('backward_compute_time_end'))
    with marks.phase('backward'):
        loss.backward()
    marks.step(32)
print(json.dumps(told))
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_arrival_agrees_with_the_logger_of_ddp(tmp_path, monkeypatch):
    """In nearly every step, the logger's moment is just after ours: the last bucket has been copied.

    Rank 0 waits for the sleep of rank 1: it arrives in the first half of a step, and rank 1 in the second.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = RunSpec(name="arrival", launch=LaunchSpec(ranks=2), observe=ObserveSpec(counters=False))
    job = prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "runs")
    record = execute(job, Local(), lambda: None)
    assert record.exit is not None
    assert record.exit.code == 0, record.exit.log_tail
    for rank, is_late in ((0, False), (1, True)):
        header, *steps = [json.loads(line) for line in (job.directory / f"steps/rank-{rank:05d}.jsonl").open()]
        log = (job.directory / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()
        told = json.loads(next(line for line in log if line.startswith("[")))
        to_real_ns = header["clock"]["realtime_ns"] - header["clock"]["monotonic_ns"]
        logged = [(step, theirs - to_real_ns) for step, theirs in zip(steps[:-1], told, strict=True) if theirs]
        assert len(logged) >= 10
        assert mostly(step["arrival_ns"] <= theirs <= step["done_ns"] for step, theirs in logged)
        assert mostly(
            theirs - step["arrival_ns"] < 0.1 * (step["done_ns"] - step["begin_ns"]) for step, theirs in logged
        )
        assert all(step["arrival_ns"] < step["done_ns"] for step in steps)
        assert mostly((2 * step["arrival_ns"] > step["begin_ns"] + step["done_ns"]) == is_late for step in steps)


def mostly(facts):
    """Whether more than three quarters of ``facts`` hold: neighbours may hold up some steps."""
    every = list(facts)
    return sum(every) > 0.75 * len(every)


BUCKETS = """
import json, time, torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from allpull import marks
torch.set_num_threads(1)
dist.init_process_group('gloo')
class Slowly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.004)
        return grad
class Layer(torch.nn.Linear):
    def forward(self, x):
        return Slowly.apply(super().forward(x))
net = torch.nn.Sequential(*[Layer(256, 256) for _ in range(8)])
ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.6)
def hook(_, bucket):
    given[bucket.index()] = time.monotonic_ns()
    return allreduce_hook(None, bucket)
ddp.register_comm_hook(None, hook)
told = []
for step in range(12):
    given = {}
    loss = ddp(torch.randn(32, 256)).sum()
    with marks.phase('backward'):
        loss.backward()
    marks.step(32)
    told.append([given[place] for place in sorted(given)])
print(json.dumps(told))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_buckets_are_ready_when_ddp_hands_them_to_its_hook(tmp_path, monkeypatch):
    """Each layer's backward takes 4 ms, far longer than the way to the hook: a bucket's two moments are nearest."""
    (tmp_path / "program.py").write_text(BUCKETS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = RunSpec(name="buckets", launch=LaunchSpec(ranks=2), observe=ObserveSpec(counters=False))
    job = prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "runs")
    record = execute(job, Local(), lambda: None)
    assert record.exit is not None
    assert record.exit.code == 0, record.exit.log_tail
    for rank in (0, 1):
        _, *steps = [json.loads(line) for line in (job.directory / f"steps/rank-{rank:05d}.jsonl").open()]
        log = (job.directory / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()
        told = json.loads(next(line for line in log if line.startswith("[")))
        are_nearest = []
        for step, handed in list(zip(steps, told, strict=True))[LEARN_STEPS:]:
            assert len(step["ready_ns"]) == len(handed) > 2
            assert step["ready_ns"][-1] == step["arrival_ns"]
            for ours, theirs in zip(step["ready_ns"], handed, strict=True):
                are_nearest.append(ours == min(step["ready_ns"], key=lambda ready: abs(ready - theirs)))
        assert mostly(are_nearest)


@dataclass(frozen=True, eq=False)
class Parameter:
    """What of a parameter tells which bucket it is in."""

    numbers: int

    def numel(self):
        return self.numbers

    def element_size(self):
        return 4


def test_parameters_are_cut_into_buckets_as_their_sizes_say():
    one, two, three = Parameter(10), Parameter(20), Parameter(30)
    assert [list(bucket) for bucket in _cut([one, two, three], [120, 120])] == [[one, two], [three]]


@pytest.mark.parametrize(
    ("parameters", "sizes"),
    [
        ([Parameter(10), Parameter(20)], [40]),  # one bucket tells no more than the arrival
        ([Parameter(10), Parameter(20)], [50, 70]),  # of another order or type
        ([Parameter(10), Parameter(20)], [40, 80, 4]),
        ([Parameter(10), Parameter(20), Parameter(1)], [40, 80]),
        ([Parameter(1)] * 100, [4] * 100),
        ([], []),
    ],
)
def test_buckets_that_cannot_be_told_apart_are_not(parameters, sizes):
    assert _cut(parameters, sizes) == []


@pytest.mark.torch
def test_on_a_device_a_bucket_is_enqueued_before_ddp_reduces_it(monkeypatch):
    """DDP itself, on one rank; only that the parameters are on an accelerator is pretended."""
    import torch  # noqa: PLC0415  where it is missing, this test is skipped
    from torch import distributed  # noqa: PLC0415
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    monkeypatch.setattr(arrival, "_device_of", lambda _: "cuda")
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    happened, clocks = [], []

    def attach(clock):
        clock.on_device = lambda place, buckets: happened.append(("ready", place, buckets))
        clocks.append(clock)

    def hook(_, bucket):
        happened.append(("reduced", bucket.index()))
        return allreduce_hook(None, bucket)

    arrival.watch_ddp(attach)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        layers = [torch.nn.Linear(256, 256) for _ in range(8)]
        network = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.6)
        network.register_comm_hook(None, hook)

        def step():
            happened.clear()
            network(torch.randn(4, 256)).sum().backward()
            return clocks[0].take()

        for _ in range(LEARN_STEPS):
            assert len(step()) == 1
        assert len(step()) == 1  # moments of the host say nothing
        buckets = happened[-1][-1] + 1
        assert buckets > 2
        expected = [[("ready", place, buckets), ("reduced", place)] for place in range(buckets)]
        assert happened == [one for pair in expected for one in pair]
        with network.no_sync():
            assert step() is None
        assert happened == []
    finally:
        distributed.destroy_process_group()
