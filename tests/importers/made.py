"""A data-parallel job of known times, and the traces that torch.profiler would write of it: the truth beside the input.

Each rank fetches, runs forward and backward, whose buckets are reduced in order as soon as all ranks have them, and
steps its optimizer. Every rank's trace is stamped by the clock of its host.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

BASE_NS = 1_790_000_000_000_000_000
MS = 1_000_000

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What each rank does in a step, in ms: backward by bucket; ``late`` is added to forward, by (step, rank).

    With ``call_ms`` the program ends each step with an all-reduce of its own that takes so long; ``late_call`` is added
    before it.
    """

    ranks: int = 2
    steps: int = 4
    hosts: Sequence[str] = ("node0",)
    input_ms: float = 1.0
    forward_ms: float = 4.0
    backward_ms: Sequence[float] = (3.0, 2.0)
    transfer_ms: Sequence[float] = (1.0, 1.5)
    optimizer_ms: float = 0.5
    late: dict[tuple[int, int], float] = field(default_factory=dict)
    clock_ms: dict[str, float] = field(default_factory=dict)
    drift: dict[str, float] = field(default_factory=dict)
    bucket_elements: int = 1000
    call_ms: float | None = None
    late_call: dict[tuple[int, int], float] = field(default_factory=dict)

    def host(self, rank: int) -> str:
        """The host of ``rank``: ranks are dealt out in blocks."""
        return self.hosts[rank * len(self.hosts) // self.ranks]

    def stamp(self, host: str, t_ms: float) -> float:
        """What the clock of ``host`` shows at ``t_ms``, in ms."""
        return t_ms * (1 + self.drift.get(host, 0.0)) + self.clock_ms.get(host, 0.0)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One step of one rank, in ms of the true time."""

    begin: float
    fetched: float
    forward_end: float
    ready: tuple[float, ...]
    reduced: tuple[float, ...]
    optimized: float
    called: float
    end: float
    wait: float
    transfer: float


def play(job: Job) -> list[list[Truth]]:
    """The truth by step and rank."""
    now = [0.0] * job.ranks
    steps = []
    for step in range(job.steps):
        begin = list(now)
        fetched = [t + job.input_ms for t in begin]
        forward_end = [t + job.forward_ms + job.late.get((step, rank), 0.0) for rank, t in enumerate(fetched)]
        ready: list[list[float]] = [[] for _ in now]
        for rank, t in enumerate(forward_end):
            ready[rank] = list(accumulate(job.backward_ms, initial=t))[1:]
        reduced: list[float] = []
        for bucket, length in enumerate(job.transfer_ms):
            start = max([*(its[bucket] for its in ready), *reduced[-1:]])
            reduced.append(start + length)
        last, done = max(its[-1] for its in ready), reduced[-1]
        optimized = done + job.optimizer_ms
        called = [optimized + job.late_call.get((step, rank), 0.0) for rank in range(job.ranks)]
        now = [optimized if job.call_ms is None else max(called) + job.call_ms] * job.ranks
        steps.append(
            [
                Truth(
                    begin=begin[rank],
                    fetched=fetched[rank],
                    forward_end=forward_end[rank],
                    ready=tuple(ready[rank]),
                    reduced=tuple(reduced),
                    optimized=optimized,
                    called=called[rank],
                    end=now[rank],
                    wait=max(0.0, min(last, done) - ready[rank][-1]),
                    transfer=done - max(last, ready[rank][-1]),
                )
                for rank in range(job.ranks)
            ]
        )
    return steps


def gloo_events(job: Job, rank: int) -> list[Event]:
    """What torch.profiler writes on CPU: operations on the main thread, Gloo's on two others."""
    us = _clock(job, rank)
    events: list[Event] = []

    def add(name: str, begin: float, end: float, *, tid: int = 1, cat: str = "cpu_op", **args: Any) -> None:
        span = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": us(begin), "dur": us(end) - us(begin)}
        events.append({**span, "args": args})

    for number, of_step in enumerate(play(job)):
        truth = of_step[rank]
        add(f"ProfilerStep#{number + 3}", truth.begin, truth.end, cat="user_annotation")
        add("enumerate(DataLoader)#_It.__next__", truth.begin, truth.fetched, cat="user_annotation")
        add("DistributedDataParallel.forward", truth.fetched, truth.forward_end, cat="user_annotation")
        add("aten::linear", truth.fetched, truth.forward_end)
        begin = truth.forward_end
        for bucket, ready in enumerate(truth.ready):
            add("autograd::engine::evaluate_function: AddmmBackward0", begin, ready - 0.1)
            add("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", ready - 0.1, ready + 0.02)
            dims = [[[job.bucket_elements + bucket]], []]
            shapes = {"Input Dims": dims, "Input type": ["TensorList", ""]}
            add("c10d::allreduce_", ready, ready + 0.01, **shapes)
            add(
                "gloo:all_reduce",
                ready,
                truth.reduced[bucket],
                tid=2 + bucket % 2,
                cat="user_annotation",
                **{"Input Dims": dims[0], "Input type": ["float"]},
            )
            begin = ready + 0.02
        add("Optimizer.step#SGD.step", truth.reduced[-1], truth.optimized, cat="user_annotation")
        if job.call_ms is not None:
            add("aten::sleep", truth.optimized, truth.called)
            add("c10d::allreduce_", truth.called, truth.called + 0.01)
            add("gloo:all_reduce", truth.called, truth.end, tid=2, cat="user_annotation")
    return events


def nccl_events(
    job: Job,
    rank: int,
    *,
    kernel: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()",
    says: bool = True,
    seq: bool = True,
) -> list[Event]:
    """What it writes with a GPU that is launched just in time; ``says``: with metadata, ``seq``: and numbers."""
    us = _clock(job, rank)
    events: list[Event] = []
    correlation = iter(range(1, 10**9))

    def add(name: str, begin: float, end: float, *, tid: int = 1, cat: str = "cpu_op", **args: Any) -> None:
        span = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": us(begin), "dur": us(end) - us(begin)}
        events.append({**span, "args": args})

    def launch(name: str, at: float, begin: float, end: float, *, tid: int = 1, stream: int = 7, **args: Any) -> None:
        number = next(correlation)
        add("cudaLaunchKernel", at, at + 0.001, tid=tid, cat="cuda_runtime", correlation=number)
        add(name, begin, end, tid=stream, cat="kernel", correlation=number, stream=stream, **args)

    calls = 0
    for number, of_step in enumerate(play(job)):
        truth = of_step[rank]
        add(f"ProfilerStep#{number + 3}", truth.begin, truth.end, cat="user_annotation")
        add("enumerate(DataLoader)#_It.__next__", truth.begin, truth.fetched, cat="user_annotation")
        add("DistributedDataParallel.forward", truth.fetched, truth.forward_end, cat="user_annotation")
        launch("void gemm()", truth.fetched, truth.fetched, truth.forward_end)
        begin = truth.forward_end
        free = 0.0
        for bucket, ready in enumerate(truth.ready):
            launch("void gemm_backward()", begin, begin, ready, tid=9)
            add("autograd::engine::evaluate_function: AddmmBackward0", begin, ready - 0.1, tid=9)
            add("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", ready - 0.1, ready, tid=9)
            calls += 1
            elements = job.bucket_elements + bucket
            facts = {
                "Collective name": "allreduce",
                "In msg nelems": elements,
                "Out msg nelems": elements,
                "Group size": job.ranks,
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(job.ranks))),
                **({"Seq": calls} if seq else {}),
            }
            add("c10d::allreduce_", ready - 0.05, ready - 0.01, tid=9)
            add("record_param_comms", ready - 0.04, ready - 0.02, tid=9, **(facts if says else {}))
            starts = max(ready, free)
            launch(kernel, ready - 0.03, starts, truth.reduced[bucket], tid=9, stream=20, **(facts if says else {}))
            free = truth.reduced[bucket]
            begin = ready
        add("Optimizer.step#SGD.step", truth.reduced[-1], truth.optimized, cat="user_annotation")
        launch("void sgd()", truth.reduced[-1], truth.reduced[-1], truth.optimized)
        if job.call_ms is not None:
            launch("void sleep()", truth.optimized, truth.optimized, truth.called)
            calls += 1
            add("c10d::allreduce_", truth.called - 0.01, truth.called)
            launch(kernel, truth.called - 0.005, truth.called, truth.end, stream=20)
    return events


def document(job: Job, rank: int, events: Sequence[Event], *, told: bool = True, host: bool = True) -> dict[str, Any]:
    """A trace around ``events``; ``told``: with ``distributedInfo``, ``host``: with the name of the host."""
    about = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": job.ranks}} if told else {}
    named = {"host_name": job.host(rank)} if host else {}
    return {"schemaVersion": 1, **about, **named, "baseTimeNanoseconds": BASE_NS, "traceEvents": list(events)}


def save(path: Path, trace: dict[str, Any]) -> Path:
    """The trace as a file; packed where its name says so."""
    text = json.dumps(trace)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def save_all(folder: Path, job: Job, *, gloo: bool = True, told: bool = True, host: bool = True, **how: Any) -> Path:
    """The traces of all ranks of ``job`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(job.ranks):
        events = gloo_events(job, rank) if gloo else nccl_events(job, rank, **how)
        save(folder / f"rank-{rank}.json.gz", document(job, rank, events, told=told, host=host))
    return folder


def _clock(job: Job, rank: int) -> Any:
    """From true ms to µs of the trace, which counts from its base."""
    host = job.host(rank)
    return lambda t_ms: round((10_000 + job.stamp(host, t_ms)) * 1000, 3)
