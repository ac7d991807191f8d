"""Self time of operators: nested calls are taken off once, and add up to the time of the outermost."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from allpull.traces.operators import self_times

LIMIT = 1 << 20


def saved(folder: Path, *events: object, ending: str = "]}") -> Path:
    text = '{"traceEvents": [' + ", ".join(json.dumps(event) for event in events) + ending
    (folder / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
    return folder.resolve()


def call(name: str, begin: float, length: float, thread: int = 1, category: str = "cpu_op") -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "tid": thread, "ts": begin, "dur": length}


def test_self_times_add_up_to_the_outermost_calls(tmp_path: Path) -> None:
    """conv calls mkldnn, which calls empty; another thread, and a kernel, have their own."""
    root = saved(
        tmp_path,
        call("empty", 3, 1),
        call("conv", 0, 10),
        call("mkldnn", 2, 6),
        call("conv", 10, 5),
        call("conv", 1, 4, thread=2),
        call("gemm", 0, 7, category="kernel"),
        call("ignored", 0, 100, category="user_annotation"),
    )
    found = self_times(root, "trace.json.gz", LIMIT)
    assert found[("operator", "conv")] == (3, pytest.approx((4 + 5 + 4) * 1e-6))
    assert found[("operator", "mkldnn")] == (1, pytest.approx(5e-6))
    assert found[("operator", "empty")] == (1, pytest.approx(1e-6))
    assert found[("kernel", "gemm")] == (1, pytest.approx(7e-6))
    assert sum(seconds for (kind, _), (_, seconds) in found.items() if kind == "operator") == pytest.approx(19e-6)


def test_damage_and_nonsense_are_done_without(tmp_path: Path) -> None:
    odd = [1, None, {"ph": "X"}, call("far", 0, 1e300), {**call("text", 0, 1), "ts": "0"}, call("true", 0, True)]
    root = saved(tmp_path, call("conv", 0, 10), *odd, ending="")
    assert self_times(root, "trace.json.gz", LIMIT) == {("operator", "conv"): (1, pytest.approx(1e-5))}
    assert self_times(root, "missing.json.gz", LIMIT) == {}


@pytest.mark.slow
def test_self_times_are_those_of_torch(tmp_path: Path) -> None:
    """``key_averages`` of the profiler that wrote the trace is the oracle."""
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
    samples = torch.randn(4, 3, 8, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            network(samples).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    seconds = {name: of for (_, name), (_, of) in self_times(tmp_path.resolve(), "trace.json", 64 << 20).items()}
    torchs = {one.key: one.self_cpu_time_total * 1e-6 for one in profiler.key_averages()}
    assert len(seconds) > 10
    assert seconds == pytest.approx({name: torchs[name] for name in seconds}, abs=1e-8)
