"""Traces of simulated GPU jobs whose backward waits for its all-reduces, or whose all-reduces are among fewer ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.importers.grid_job import GridJob, simulated

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.idle import accelerator_idle
from allpull.analyse.run import metrics
from allpull.explain.explanation import explain
from allpull.importers.assemble import Imported, import_traces
from allpull.rundir.read.run import read_run
from allpull.schema.explained import ExplainResult, Finding

IN_GROUPS = "gradients are reduced within groups of fewer than all ranks"
AWAITED = "backward waits for each reduction of gradients"


def brought_in(job: GridJob, tmp_path: Path) -> Imported:
    simulated(job, tmp_path / "traces")
    return import_traces([tmp_path / "traces"], out=tmp_path / "runs")


def the(rule: str, result: ExplainResult) -> Finding:
    found = {one.rule: one for one in result.findings}
    assert rule in found, (list(found), result.notes)
    return found[rule]


def truly_idle(traces: Path) -> float:
    """The share of steps in which no kernel ran, mean over devices, read off the lists of kernels."""
    shares = []
    for path in traces.iterdir():
        events = json.loads(path.read_text())["traceEvents"]
        steps = [one for one in events if one["name"].startswith("ProfilerStep")]
        begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
        ran, until = 0.0, begin
        for one in sorted((one for one in events if one["cat"] == "kernel"), key=lambda one: one["ts"]):
            ran += max(0.0, one["ts"] + one["dur"] - max(until, one["ts"]))
            until = max(until, one["ts"] + one["dur"])
        shares.append(1 - ran / (end - begin))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("late", [{1: 60.0}, {0: 60.0, 1: 60.0}], ids=["one rank", "one group"])
def test_ranks_that_wait_within_their_tensor_parallel_group_do_no_work_of_their_own(
    tmp_path: Path, late: dict[int, float]
) -> None:
    job = GridJob(tensor=2, slow=late)
    done = brought_in(job, tmp_path)
    assert any(IN_GROUPS in gap for gap in done.gaps)
    run = AlignedRun(read_run(done.directory))
    assert run.matched.unmatched == 0
    truth = simulated(job) / simulated(replace(job, slow={}))
    result = explain(run).result
    if len(late) == 1:
        found = the("slow-rank", result)
        assert found.ranks == [1]
        assert found.gain is not None
        assert found.gain.value == pytest.approx(truth, rel=0.01)
    else:
        assert {rank for one in result.findings if one.rule == "slow-rank" for rank in one.ranks} <= {0, 1}
    host_s = metrics(run).phases["host"]
    assert host_s is not None
    assert host_s < 100e-6


@pytest.mark.parametrize("late", [{}, {2: 60.0}], ids=["alike", "one late"])
def test_an_exchange_that_backward_waits_for_is_no_idle_accelerator(tmp_path: Path, late: dict[int, float]) -> None:
    job = GridJob(across=3000.0, awaited=True, slow=late)
    done = brought_in(job, tmp_path)
    assert any(AWAITED in gap for gap in done.gaps)
    run = AlignedRun(read_run(done.directory))
    found = metrics(run)
    assert found.phases["transfer"] == pytest.approx(0.012, rel=0.01)
    assert found.phases["host"] == pytest.approx(0, abs=50e-6)
    result = explain(run).result
    network = the("network-bound", result)
    assert network.gain is not None
    assert network.gain.value == pytest.approx(simulated(job) / simulated(replace(job, across=0.0)), rel=0.01)
    assert "between-phases" not in {one.rule for one in result.findings}
    if late:
        slow = the("slow-rank", result)
        assert slow.ranks == [2]
        assert slow.gain is not None
        assert slow.gain.value == pytest.approx(simulated(job) / simulated(replace(job, slow={})), rel=0.01)


@pytest.mark.parametrize("late", [{}, {2: 60.0}], ids=["alike", "one late"])
def test_gradients_that_are_reduced_by_hand_are_explained(tmp_path: Path, late: dict[int, float]) -> None:
    job = GridJob(across=3000.0, by_hand=True, slow=late)
    run = AlignedRun(read_run(brought_in(job, tmp_path).directory))
    assert not run.buckets.gaps
    assert run.buckets.times.is_empty()
    result = explain(run).result
    network = the("network-bound", result)
    assert network.gain is not None
    assert network.gain.value == pytest.approx(simulated(job) / simulated(replace(job, across=0.0)), rel=0.01)
    if late:
        slow = the("slow-rank", result)
        assert slow.ranks == [2]
        assert slow.gain is not None
        assert slow.gain.value == pytest.approx(simulated(job) / simulated(replace(job, slow={})), rel=0.01)


def test_what_is_computed_beside_the_last_reduction_in_groups_is_backward(tmp_path: Path) -> None:
    job = GridJob(tensor=2, across=2400.0, last=2000.0)
    found = metrics(AlignedRun(read_run(brought_in(job, tmp_path).directory)))
    assert found.phases["backward"] == pytest.approx(0.012, rel=0.01)
    assert found.phases["host"] == pytest.approx(0, abs=100e-6)


@pytest.mark.parametrize("tensor", [1, 2])
def test_buckets_that_backward_hides_stay_buckets(tmp_path: Path, tensor: int) -> None:
    done = brought_in(GridJob(tensor=tensor), tmp_path)
    run = read_run(done.directory)
    assert any("counts as a call" in gap for gap in done.gaps) == (tensor > 1)
    assert bool(run.steps["done_ns"].count()) == (tensor == 1)
    assert [len(sizes) for sizes in run.ready["ready_ns"].to_list()][:1] == ([4] if tensor == 1 else [])


@pytest.mark.parametrize(
    "job",
    [GridJob(forward=10.0, backward=10.0, across=60.0), GridJob(tensor=2), GridJob(across=3000.0, awaited=True)],
    ids=["launch-bound", "in groups", "awaited"],
)
def test_a_device_that_reduces_is_not_idle(tmp_path: Path, job: GridJob) -> None:
    done = brought_in(job, tmp_path)
    idle = accelerator_idle(AlignedRun(read_run(done.directory)))
    assert idle.share == pytest.approx(truly_idle(tmp_path / "traces"), abs=0.01)
