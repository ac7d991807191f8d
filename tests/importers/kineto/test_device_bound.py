"""Traces of devices that stand still for a known time: explained, it is the host that is named, or the copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.importers.made import BASE_NS, save

from allpull.analyse.aligned import AlignedRun
from allpull.explain.explanation import explain
from allpull.importers.assemble import import_traces
from allpull.rundir.read.run import read_run

STEPS, KERNELS = 12, 20
STEP_MS = 40.0


def trace(*, kernel_ms: float, copy_ms: float) -> dict[str, Any]:
    """One rank that copies a batch to its device and launches a kernel every 1.5 ms, each of ``kernel_ms``.

    For the rest of a step its host does nothing.
    """
    events: list[dict[str, Any]] = []

    def add(name: str, cat: str, begin_ms: float, ms: float, **args: Any) -> None:
        span = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": args.get("stream", 1)}
        events.append({**span, "ts": begin_ms * 1000, "dur": ms * 1000, "args": args})

    number = 0
    for step in range(STEPS):
        begin = 1000.0 + step * STEP_MS
        add(f"ProfilerStep#{step + 3}", "user_annotation", begin, STEP_MS)
        add("cudaMemcpyAsync", "cuda_runtime", begin, 0.01, correlation=(number := number + 1))
        add("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", begin, copy_ms, correlation=number, stream=7)
        add("forward", "user_annotation", begin + copy_ms, KERNELS * 1.5)
        for place in range(KERNELS):
            at = begin + copy_ms + 1.5 * place
            add("cudaLaunchKernel", "cuda_runtime", at, 0.01, correlation=(number := number + 1))
            add("void gemm()", "kernel", at + 0.01, kernel_ms, correlation=number, stream=7)
    about = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}, "host_name": "node0"}
    return {"schemaVersion": 1, **about, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}


@pytest.mark.parametrize(
    ("kernel_ms", "copy_ms", "wanted"),
    [
        (0.3, 0.1, {"launch-bound": KERNELS * (1.5 - 0.3), "between-phases": STEP_MS - KERNELS * 1.5 - 0.1}),
        (1.49, 9.0, {"copy-bound": 9.0}),
        (0.6, 8.0, {"copy-bound": 8.0, "launch-bound": KERNELS * (1.5 - 0.6)}),
    ],
    ids=["launch-bound", "copy-bound", "both"],
)
def test_what_the_device_waited_for_is_named_with_its_size(
    tmp_path: Path, kernel_ms: float, copy_ms: float, wanted: dict[str, float]
) -> None:
    place = save(tmp_path / "rank-0.json", trace(kernel_ms=kernel_ms, copy_ms=copy_ms))
    run = read_run(import_traces([place], out=tmp_path / "runs").directory)
    priced = {one.rule: one.loss_s_per_step for one in explain(AlignedRun(run)).result.findings if not one.advice}
    assert priced == pytest.approx({rule: ms / 1000 for rule, ms in wanted.items()}, rel=0.02)
    assert list(priced) == sorted(wanted, key=lambda rule: -wanted[rule])
