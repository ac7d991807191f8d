"""A job on GPUs, simulated operation by operation: hosts issue kernels, one stream computes, another reduces buckets.

It shares no code with what reads its traces. What a change gains is what the same simulation takes without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_US = 5_000_000_000.0
HOST, AUTOGRAD, STREAM, NCCL, DEVICE = 100, 101, 7, 20, 0
BUCKET = 25 << 18  # elements
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GpuJob:
    """All times in µs.

    ``loader``: until a batch is there; ``issue``: of the host for one operation; ``bucket``: one of ``buckets`` on the
    network. ``waits``: each step ends with ``.item()``. ``idle``: what the host does after it, outside torch. Rank 0
    evaluates for ``evaluation`` after every ``every`` steps, before ``prof.step()``. ``buffers``: are broadcast before
    forward, in calls that name their root. ``copy``: of each batch to the device, which the host does not await.
    ``slow``: how much longer the last rank computes in forward. ``window``: the profiler records so many steps of each
    so many, and saves them as a trace of their own; None: all steps as one.
    """

    ranks: int = 2
    steps: int = 20
    forward: tuple[int, float] = (40, 200.0)
    backward: tuple[int, float] = (80, 200.0)
    optimizer: tuple[int, float] = (10, 100.0)
    loader: float = 300.0
    issue: float = 8.0
    buckets: int = 4
    bucket: float = 1000.0
    waits: bool = True
    idle: float = 0.0
    every: int = 0
    evaluation: float = 0.0
    says_rank: bool = True
    buffers: bool = False
    copy: float = 0.0
    slow: float = 0.0
    window: tuple[int, int] | None = None


@dataclass(kw_only=True)
class _Rank:
    number: int
    step: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    host: float = 0.0
    stream: float = 0.0
    correlation: int = 0

    def add(self, name: str, category: str, thread: int, begin: float, end: float, **arguments: Any) -> None:
        process = DEVICE if category in ("kernel", "gpu_memcpy") else 4000 + self.number
        times = {"ts": round(BASE_US + begin, 3), "dur": round(end - begin, 3)}
        about = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
        self.events.append((self.step, about | times | {"args": arguments}))

    def launch(self, thread: int, at: float) -> int:
        self.correlation += 1
        self.add("cudaLaunchKernel", "cuda_runtime", thread, at, at + 1, correlation=self.correlation)
        return self.correlation

    def run(self, name: str, thread: int, issue: float, length: float, op: str) -> None:
        """One operation: issued by the host, computed when the stream is free."""
        self.add(op, "cpu_op", thread, self.host, self.host + issue)
        number = self.launch(thread, self.host + issue / 2)
        begin = max(self.host + issue / 2 + 6, self.stream)
        self.stream = begin + length
        self.add(name, "kernel", STREAM, begin, self.stream, correlation=number, stream=STREAM)
        self.host += issue


def simulated(job: GpuJob, folder: Path | None = None) -> float:
    """The mean step of the last rank's device after the first four, in s; its traces go to ``folder``."""
    ranks = [_Rank(number=number) for number in range(job.ranks)]
    ends, network = list[float](), 0.0
    for step in range(job.steps):
        begun = [rank.host for rank in ranks]
        for rank in ranks:
            rank.step = step
        queued = [list(_until_backward_ends(job, rank)) for rank in ranks]
        freed = network
        for place in range(job.buckets):
            ready = [max(of_rank[place][0], freed) for of_rank in queued]
            network = max(ready) + job.bucket
            for rank, began, (_, number) in zip(ranks, ready, (of_rank[place] for of_rank in queued), strict=True):
                name, facts = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", _described(job, rank)
                rank.add(name, "kernel", NCCL, began, network, correlation=number, stream=NCCL, **facts)
            freed = network
        for rank, began in zip(ranks, begun, strict=True):
            _end_of_step(job, rank, step, began, network)
        ends.append(ranks[-1].stream)
    if folder is not None:
        folder.mkdir(parents=True)
        for rank in ranks:
            _save(job, rank, folder)
    return (ends[-1] - ends[3]) / (job.steps - 4) / 1e6


def _until_backward_ends(job: GpuJob, rank: _Rank) -> Iterator[tuple[float, int]]:
    """When each bucket of ``rank`` may be reduced, and the number of its kernel."""
    rank.add("enumerate(DataLoader)#x.__next__", "user_annotation", HOST, rank.host, rank.host + job.loader)
    rank.host += job.loader
    if job.copy:
        number, begin = rank.launch(HOST, rank.host), max(rank.host + 3, rank.stream)
        rank.stream = begin + job.copy
        name = "Memcpy HtoD (Pinned -> Device)"
        rank.add(name, "gpu_memcpy", STREAM, begin, rank.stream, correlation=number, stream=STREAM)
    begun = rank.host
    if job.buffers:
        facts = _described(job, rank) | {"Collective name": "broadcast", "In msg nelems": 1, "Rank": 0}
        rank.add("record_param_comms", "cpu_op", HOST, begun, begun + 20, **facts)
        number = rank.launch(HOST, begun + 10)
        name, at = "ncclDevKernel_Broadcast_RING_LL", max(begun + 12, rank.stream)
        rank.add(name, "kernel", NCCL, at, at + 1, correlation=number, stream=NCCL, **facts)
        rank.host += 20
    longer = job.slow / job.forward[0] if rank.number == job.ranks - 1 else 0.0
    for _ in range(job.forward[0]):
        rank.run("forward_kernel", HOST, job.issue, job.forward[1] + longer, "aten::convolution")
    rank.add("DistributedDataParallel.forward", "user_annotation", HOST, begun, rank.host)
    for number in range(job.backward[0]):
        op = "autograd::engine::evaluate_function: ConvolutionBackward0"
        rank.run("backward_kernel", AUTOGRAD, job.issue, job.backward[1], op)
        if (number + 1) % (job.backward[0] // job.buckets) == 0:
            now, facts = rank.host, _described(job, rank)
            hook = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            rank.add(hook, "cpu_op", AUTOGRAD, now, now + 60)
            rank.add("c10d::allreduce_", "cpu_op", AUTOGRAD, now + 5, now + 55)
            rank.add("record_param_comms", "cpu_op", AUTOGRAD, now + 8, now + 50, **facts)
            yield max(now + 38, rank.stream), rank.launch(AUTOGRAD, now + 30)
            rank.host += 60


def _end_of_step(job: GpuJob, rank: _Rank, step: int, begun: float, reduced: float) -> None:
    begin, rank.stream = rank.host, max(rank.stream, reduced)
    for _ in range(job.optimizer[0]):
        rank.run("multi_tensor_apply", HOST, job.issue, job.optimizer[1], "aten::_foreach_add_")
    rank.add("Optimizer.step#SGD.step", "user_annotation", HOST, begin, rank.host)
    if job.waits:
        rank.host = max(rank.host, rank.stream) + 20
    if job.every and (step + 1) % job.every == 0 and rank.number == 0:
        begin = rank.host
        for _ in range(5):
            began = rank.host
            rank.run("forward_kernel", HOST, job.issue, job.evaluation / 5, "aten::convolution")
            rank.add("DistributedDataParallel.forward", "user_annotation", HOST, began, rank.host)
        rank.host = rank.stream + 20
        rank.add("evaluation", "user_annotation", HOST, begin, rank.host)
    rank.host += job.idle
    rank.add(f"ProfilerStep#{step + 10}", "user_annotation", HOST, begun, rank.host - 1)


def _described(job: GpuJob, rank: _Rank) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": BUCKET,
        "Out msg nelems": BUCKET,
        "Group size": job.ranks,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(job.ranks))),
        "Rank": rank.number,
    }


def _save(job: GpuJob, rank: _Rank, folder: Path) -> None:
    about = {"rank": rank.number, "world_size": job.ranks, "backend": "nccl"}
    facts = {"baseTimeNanoseconds": 1759276800000000000, "host_name": "node1"}
    facts |= {"distributedInfo": about} if job.says_rank else {}
    steps, cycle = job.window or (job.steps, job.steps)
    for place, first in enumerate(range(0, job.steps - steps + 1, cycle)):
        events = [event for step, event in rank.events if first <= step < first + steps]
        name = f"rank{rank.number}.json" if job.window is None else f"window{place}_rank{rank.number}.json"
        (folder / name).write_text(json.dumps(facts | {"traceEvents": events}), "utf-8")
