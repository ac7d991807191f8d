"""A job on GPUs in two dimensions, simulated kernel by kernel: tensor parallelism within groups, averaging across them.

It shares no code with what reads its traces. What a change gains is what the same simulation takes without it. Hosts
run ahead of their devices within a step and wait for them at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTE, ACROSS, WITHIN = 7, 20, 21
"""Streams of a device: its own kernels, the averaging of gradients, tensor parallelism."""
MAIN, AUTOGRAD = 100, 101
ISSUE_US = 8.0
LAG_US = 2.0  # from the end of a kernel to the begin of one that waits for it


@dataclass(frozen=True, kw_only=True)
class GridJob:
    """All times in µs; ``slow`` is how much longer each kernel of a rank computes, by rank.

    ``tensor``: ranks of one tensor-parallel group; a call of ``within`` among them, for which all wait, follows each
    of ``blocks`` in forward and backward. Each block's gradients are averaged ``across`` the groups; with ``awaited``
    backward goes on after that. ``by_hand``: all of them after backward, outside of autograd's hooks. ``last``: of a
    kernel of backward after the last gradient.
    """

    ranks: int = 4
    steps: int = 24
    tensor: int = 1
    blocks: int = 4
    kernels: int = 5
    forward: float = 300.0
    backward: float = 500.0
    optimizer: float = 80.0
    loader: float = 300.0
    within: float = 60.0
    across: float = 900.0
    awaited: bool = False
    by_hand: bool = False
    last: float = 0.0
    slow: dict[int, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Rank:
    number: int
    host: float = 0.0
    free: dict[int, float] = field(default_factory=lambda: dict.fromkeys((COMPUTE, ACROSS, WITHIN), 0.0))
    correlation: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, category: str, thread: int, begin: float, end: float, **arguments: Any) -> None:
        times = {"ts": round(10_000.0 + begin, 3), "dur": round(end - begin, 3)}
        about = {"ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 9, "tid": thread}
        self.events.append(about | times | {"args": arguments})

    def issue(self, name: str, thread: int) -> int:
        self.add(name, "cpu_op", thread, self.host, self.host + ISSUE_US)
        self.correlation += 1
        self.add("cudaLaunchKernel", "cuda_runtime", thread, self.host + 2, self.host + 4, correlation=self.correlation)
        self.host += ISSUE_US
        return self.correlation

    def kernel(self, name: str, stream: int, begin: float, end: float, number: int, **facts: Any) -> None:
        self.add(name, "kernel", stream, begin, end, correlation=number, stream=stream, **facts)
        self.free[stream] = end

    def compute(self, op: str, thread: int, length: float) -> None:
        number = self.issue(op, thread)
        begin = max(self.host, self.free[COMPUTE])
        self.kernel("gemm", COMPUTE, begin, begin + length, number)


def simulated(job: GridJob, folder: Path | None = None) -> float:
    """The mean step in s; traces of all ranks go to ``folder``."""
    ranks = [_Rank(number=number) for number in range(job.ranks)]
    for step in range(job.steps):
        _play(job, step, ranks)
    if folder is not None:
        folder.mkdir(parents=True)
        for rank in ranks:
            about = {"distributedInfo": {"rank": rank.number, "world_size": job.ranks, "backend": "nccl"}}
            about |= {"host_name": "node0", "baseTimeNanoseconds": 1_759_276_800_000_000_000}
            (folder / f"rank{rank.number}.json").write_text(json.dumps(about | {"traceEvents": rank.events}), "utf-8")
    return max(rank.host for rank in ranks) / job.steps / 1e6


def _play(job: GridJob, step: int, ranks: Sequence[_Rank]) -> None:
    begun = [rank.host for rank in ranks]
    tensor, data = (
        _groups(job, ranks, lambda number: number // job.tensor),
        _groups(job, ranks, lambda number: number % job.tensor),
    )
    for rank in ranks:
        rank.add("enumerate(DataLoader)#x.__next__", "user_annotation", MAIN, rank.host, rank.host + job.loader)
        rank.host += job.loader
    forward = [rank.host for rank in ranks]
    for _ in range(job.blocks):
        _block(job, ranks, "aten::addmm", MAIN, job.forward)
        _within(job, tensor, MAIN)
    for rank, began in zip(ranks, forward, strict=True):
        rank.add("DistributedDataParallel.forward", "user_annotation", MAIN, began, rank.host)
    for _ in range(job.blocks):
        _block(job, ranks, "autograd::engine::evaluate_function: AddmmBackward0", AUTOGRAD, job.backward)
        for rank in ranks if job.tensor > 1 else ():
            name = "autograd::engine::evaluate_function: RowParallelBackward"
            rank.add(name, "cpu_op", AUTOGRAD, rank.host, rank.host + ISSUE_US + 1)
        _within(job, tensor, AUTOGRAD)
        for rank in ranks if not job.by_hand else ():
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            rank.add(name, "cpu_op", AUTOGRAD, rank.host - 0.5, rank.host + ISSUE_US + 1)
        for place, group in enumerate(data if not job.by_hand else ()):
            _meet(group, ACROSS, job.across, AUTOGRAD, f"across {place}", 1_000_000, awaited=job.awaited)
    for rank in ranks if job.last else ():
        rank.compute("autograd::engine::evaluate_function: EmbeddingBackward0", AUTOGRAD, job.last)
    for _ in range(job.blocks if job.by_hand else 0):
        for place, group in enumerate(data):
            _meet(group, ACROSS, job.across, MAIN, f"across {place}", 1_000_000, awaited=True)
    for rank, began in zip(ranks, begun, strict=True):
        optimizing = rank.host
        rank.free[COMPUTE] = max(rank.free[COMPUTE], rank.free[ACROSS] + LAG_US)
        rank.compute("aten::_foreach_add_", MAIN, job.optimizer)
        rank.add("Optimizer.step#SGD.step", "user_annotation", MAIN, optimizing, rank.host)
        rank.host = max(rank.host, rank.free[COMPUTE]) + 5
        rank.add(f"ProfilerStep#{step + 10}", "user_annotation", MAIN, began, rank.host - 1)


def _groups(job: GridJob, ranks: Sequence[_Rank], key: Callable[[int], int]) -> list[list[_Rank]]:
    keys = sorted({key(number) for number in range(job.ranks)})
    return [[rank for rank in ranks if key(rank.number) == one] for one in keys]


def _block(job: GridJob, ranks: Sequence[_Rank], op: str, thread: int, length: float) -> None:
    for rank in ranks:
        for _ in range(job.kernels):
            rank.compute(op, thread, length + job.slow.get(rank.number, 0.0))


def _within(job: GridJob, groups: Sequence[list[_Rank]], thread: int) -> None:
    for place, group in enumerate(groups if job.tensor > 1 else ()):
        _meet(group, WITHIN, job.within, thread, f"within {place}", 4096, awaited=True)


def _meet(
    group: Sequence[_Rank], stream: int, length: float, thread: int, name: str, elements: int, *, awaited: bool
) -> None:
    """An all-reduce: it begins on each rank when its stream and data are ready, and ends on all at once."""
    begins, numbers = [], []
    for rank in group:
        facts = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(group),
            "dtype": "Float",
            "Process Group Name": name,
            "Process Group Ranks": str([one.number for one in group]),
        }
        rank.add("record_param_comms", "cpu_op", thread, rank.host + 1, rank.host + ISSUE_US - 1, **facts)
        numbers.append((rank.issue("c10d::allreduce_", thread), facts))
        begins.append(max(rank.host, rank.free[stream], rank.free[COMPUTE]))
    end = max(begins) + length
    for rank, begin, (number, facts) in zip(group, begins, numbers, strict=True):
        rank.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream, begin, end, number, **facts)
        if awaited:
            rank.free[COMPUTE] = max(rank.free[COMPUTE], end + LAG_US)
