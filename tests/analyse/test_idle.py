"""Idle accelerators: made runs whose idle time is known, a real trace of a GPU against its file, and runs on CPUs.

No accelerator is here: device times and samples of drivers are as the documentation of their sources describes them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import History, simulate
from tests.oracle.training import Device, even

from allpull import open_run
from allpull.analyse.aligned import AlignedRun
from allpull.analyse.idle import ON_CPUS, accelerator_idle, idle_in
from allpull.traces.kineto import read_window

TESTS = Path(__file__).resolve().parents[1]
WARMUP = 2


def recorded(history: History, folder: Path, **changes: object) -> AlignedRun:
    return open_run(write(history, folder, Recording(warmup=WARMUP, **changes))).aligned  # type: ignore[arg-type]


def waited_for_input(history: History) -> float:
    """The share of steps in which devices had no work, for their loader."""
    logs = [log for own in history.devices for log in own[WARMUP:]]
    return sum(log.phases.get("input", 0.0) for log in logs) / sum(log.end - log.begin for log in logs)


def test_a_slow_loader_by_device_times(tmp_path: Path) -> None:
    history = simulate(even(ranks=2, input_s=0.180, device=Device(issue_share=0.02)))
    found = accelerator_idle(recorded(history, tmp_path))
    assert found.source == "device times"
    truth = waited_for_input(history)
    assert truth > 0.3
    assert found.share == pytest.approx(truth, abs=0.02)
    assert found.known == pytest.approx(1.0, abs=0.1)


def test_a_busy_device_is_not_idle(tmp_path: Path) -> None:
    found = accelerator_idle(recorded(simulate(even(ranks=2, device=Device(issue_share=0.02))), tmp_path))
    assert found.share == pytest.approx(0.0, abs=0.02)


def test_the_driver_where_the_host_paces_the_device(tmp_path: Path) -> None:
    """A host that issues more slowly than its device works: busy times are not known, and NVML says 40 and 60 %."""
    history = simulate(even(ranks=2, steps=120, device=Device(issue_share=1.3, pieces=4)))
    aligned = recorded(history, tmp_path, gpu=lambda rank, _: {"busy_share": 0.4 + 0.2 * rank})
    found = accelerator_idle(aligned)
    assert found.source == "GPU utilisation"
    assert found.share == pytest.approx(0.5)


def test_a_trace_of_a_gpu_against_its_file() -> None:
    trace = read_window((TESTS / "traces/real").resolve(), "nccl_data.json.gz", 64 << 20)
    found = idle_in(trace)
    assert found is not None
    events = json.loads(gzip.decompress((TESTS / "traces/real/nccl_data.json.gz").read_bytes()))["traceEvents"]
    steps = [
        one for one in events if str(one.get("name")).startswith("ProfilerStep#") and one["cat"] == "user_annotation"
    ]
    begin, end = min(one["ts"] for one in steps), max(one["ts"] + one["dur"] for one in steps)
    device = {"kernel", "gpu_memcpy", "gpu_memset"}
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") in device)
    reached, running = begin, 0.0
    for first, last in spans:
        running += max(0.0, min(last, end) - max(first, reached))
        reached = max(reached, min(last, end))
    assert found[0] / found[1] == pytest.approx(1 - running / (end - begin), abs=1e-3)


def test_on_cpus_there_is_none_and_why() -> None:
    found = accelerator_idle(open_run(TESTS / "runs" / "v1.4").aligned)
    assert (found.share, found.source, found.reason) == (None, None, ON_CPUS)
