"""Traces recorded on real machines (``tests/traces/real``), checked against a second way to count."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import BadInput
from allpull.importers.assemble import Imported, import_traces
from allpull.importers.kineto.calls import calls_of
from allpull.importers.sources import find, unpacked
from allpull.rundir.read.run import RunData, read_run
from allpull.traces.kineto import read_trace

TRACES = Path(__file__).parents[1] / "traces" / "real"


@pytest.fixture
def bring(tmp_path: Path) -> Callable[..., tuple[Imported, RunData]]:
    """Import some of these traces by name."""

    def one(*names: str) -> tuple[Imported, RunData]:
        places = [TRACES / name for name in names]
        done = import_traces(places, out=tmp_path / "runs")
        return done, read_run(done.directory)

    return one


def raw(name: str) -> list[dict[str, Any]]:
    with gzip.open(TRACES / name) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_nccl_of_2024_with_metadata(bring: Any) -> None:
    """Three steps of a ResNet-50 of rank 0 of 2: 25,557,032 parameters in five buckets, hidden behind backward."""
    done, run = bring("nccl_data.json.gz")
    assert run.steps["step"].to_list() == [4, 5, 6]
    assert [sum(log.sizes_bytes) for log in run.events[0].buckets] == [4 * 25_557_032]
    assert run.record.versions["nccl"] == "2.17.1"
    assert {kind.group for kind in run.events[0].collective_kinds} == {"0 [0, 1]"}
    found = metrics(AlignedRun(run))
    assert found.phases["wait"] is None  # of a rank that is not here
    assert any("traces of 1 rank of 2: rank 1 left none" in gap for gap in done.gaps)
    assert found.phases["host"] == pytest.approx(0.18, abs=0.01)  # launch-bound under the profiler


def test_exposed_communication_is_what_a_plain_search_finds(bring: Any) -> None:
    """From the last kernel that computed before the gradients were back until then, read off the list of kernels."""
    _, run = bring("nccl_data.json.gz")
    events = raw("nccl_data.json.gz")
    kernels = sorted((one["ts"], one["ts"] + one["dur"], one["name"]) for one in events if one.get("cat") == "kernel")
    starts = sorted(
        one["ts"] for one in events if one["name"].startswith("Optimizer.step") and one["cat"] == "user_annotation"
    )
    blocked_us = ((run.steps["done_ns"] - run.steps["arrival_ns"]) / 1000).to_list()
    for start_us, blocked in zip(starts, blocked_us, strict=True):
        done_us = max(end for begin, end, name in kernels if "AllReduce" in name and begin < start_us)
        computed_us = max(end for begin, end, name in kernels if "nccl" not in name and begin < done_us)
        assert blocked == pytest.approx(done_us - computed_us, abs=1)


def test_traces_of_other_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="several jobs"):
        import_traces([TRACES], out=tmp_path / "runs")


def test_nccl_of_2023_with_kernels_missing(bring: Any) -> None:
    """Two of 128 ranks, most of whose kernels somebody took out of the traces: what is there is said, and no more."""
    done, run = bring("sampled_rank-0.json.gz", "sampled_rank-1.json.gz")
    assert "7 of 13 collectives were recorded on several ranks, none on every participating rank" in str(done.unmatched)
    assert AlignedRun(run).matched.unmatched == AlignedRun(run).matched.calls.height
    assert run.record.ranks == 2
    assert {header.ranks for header in run.headers.values()} == {128}
    assert any("2 ranks of 128" in gap for gap in done.gaps)
    found = metrics(AlignedRun(run))
    assert found.phases["wait"] is None
    assert found.step_s is not None
    assert found.step_s.median == pytest.approx(0.617, abs=0.02)
    assert {kind.op for kind in run.events[0].collective_kinds} == {"all_to_all", "all_gather", "send_recv"}


def test_a_trace_without_distributed_info(bring: Any) -> None:
    done, run = bring("distributed_info_not_found.json.gz")
    assert run.steps["step"].to_list() == [1009]
    assert run.collectives.height == 6
    assert run.collectives["end_ns"].null_count() == 6
    assert any("states no rank" in gap for gap in done.gaps)
    assert any("called but not seen to run" in gap for gap in done.gaps)
    assert metrics(AlignedRun(run)).phases["backward"] == pytest.approx(0.03416, abs=1e-4)


def test_a_step_on_amd(bring: Any) -> None:
    done, run = bring("mi250_minitoy_train_ROCm6_2_kineto.json.gz")
    assert run.steps["step"].to_list() == [1]  # the second was cut off when it began
    device = run.events[0].device_steps[0]
    kernels = [event for event in raw("mi250_minitoy_train_ROCm6_2_kineto.json.gz") if event.get("cat") == "kernel"]
    assert device.busy_ns == pytest.approx(sum(event["dur"] for event in kernels) * 1000, rel=1e-3)
    phases = metrics(AlignedRun(run)).phases
    assert phases["host"] is not None
    assert phases["host"] > 0.9 * 0.00929
    assert done.unmatched is None


@pytest.mark.parametrize("name", ["nccl_data.json.gz", "sampled_rank-0.json.gz", "sampled_rank-1.json.gz"])
def test_every_collective_kernel_belongs_to_what_launched_it(name: str) -> None:
    (source,) = find([TRACES / name], [])
    with unpacked(source) as file:
        trace = read_trace(file)
    assert trace.fault is None
    assert trace.strange == 0
    kernels = [event for event in raw(name) if event.get("cat") == "kernel" and "nccl" in event["name"].lower()]
    ran = [call for call in calls_of(trace).calls if call.ran_ns]
    assert len(ran) == len(kernels)
    linked = [call for call in ran if call.called_ns < call.ran_ns[0]]
    families = {call.use.family for call in linked}
    assert families <= {"all_reduce", "broadcast", "all_to_all", "all_gather"}
    if name == "nccl_data.json.gz":
        assert len(linked) == len(ran) == 21
        assert sum(call.is_reduction for call in ran) == 15
