"""Traces of simulated GPU jobs: what is said of them is what the simulation does, and gains without the fault."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.importers.gpu_job import BUCKET, GpuJob, simulated

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.programs import program
from allpull.analyse.run import metrics
from allpull.compare.comparability import check_comparable, differences, facts
from allpull.errors import BadInput
from allpull.explain.explanation import explain
from allpull.importers.assemble import Imported, import_traces
from allpull.rundir.read.run import read_run
from allpull.schema.explained import ExplainResult, Finding
from allpull.traces.collectives import executions
from allpull.traces.trace import Op, Trace


def imported(job: GpuJob, tmp_path: Path) -> AlignedRun:
    simulated(job, tmp_path / "traces")
    return AlignedRun(read_run(brought_in(tmp_path).directory))


def brought_in(tmp_path: Path) -> Imported:
    return import_traces([tmp_path / "traces"], out=tmp_path / "runs")


def the(rule: str, result: ExplainResult) -> Finding:
    found = {one.rule: one for one in result.findings}
    assert rule in found, (list(found), result.notes)
    return found[rule]


SMALL = GpuJob(forward=(40, 10.0), backward=(80, 10.0), optimizer=(10, 10.0), issue=60.0)


@pytest.mark.parametrize(("bucket", "waits"), [(1000.0, True), (2000.0, True), (500.0, False)])
def test_what_the_exchange_hides_in_idle_time_is_not_gained(tmp_path: Path, bucket: float, waits: bool) -> None:
    """Hosts are slower than devices, and buckets are reduced meanwhile: without that time they are not hidden."""
    job = replace(SMALL, bucket=bucket, waits=waits, loader=300.0 if waits else 1.0)  # else it would be hidden, too
    found = the("launch-bound", explain(imported(job, tmp_path)).result)
    truth = simulated(job) / simulated(replace(job, issue=0.01))
    assert found.gain is not None
    assert found.gain.value == pytest.approx(truth, rel=0.03)
    assert 1 <= found.gain.low < truth < found.gain.high


@pytest.mark.parametrize("idle", [2000.0, 4000.0, 6000.0, 9000.0])
def test_hosts_that_issue_slowly_and_do_something_else_have_both_findings(tmp_path: Path, idle: float) -> None:
    """When a host issues is not recorded: the truth is in the interval of one, and below the bound of the other."""
    job = replace(SMALL, idle=idle)
    result = explain(imported(job, tmp_path)).result
    launch = the("launch-bound", result).gain
    assert launch is not None
    assert 1 <= launch.low < simulated(job) / simulated(replace(job, issue=0.01)) < launch.high
    if idle > 2000.0:  # else all of it might be issuing
        between = the("between-phases", result).gain
        assert between is not None
        assert between.is_at_most
        assert simulated(job) / simulated(replace(job, idle=0.0)) == pytest.approx(between.value, rel=0.08)


def test_a_copy_before_a_broadcast_is_no_waiting_for_it(tmp_path: Path) -> None:
    run = imported(GpuJob(buffers=True, loader=100.0, copy=4000.0), tmp_path)
    assert metrics(run).phases["copy"] == pytest.approx(0.004, rel=0.01)
    the("copy-bound", explain(run).result)


def test_hosts_that_issue_nothing_meanwhile_do_something_else(tmp_path: Path) -> None:
    job = GpuJob(idle=5000.0)
    result = explain(imported(job, tmp_path)).result
    assert "launch-bound" not in {one.rule for one in result.findings}
    found = the("between-phases", result)
    assert found.gain is not None
    assert found.gain.is_at_most
    assert found.gain.value == pytest.approx(simulated(job) / simulated(replace(job, idle=0.0)), rel=0.01)


@pytest.mark.parametrize("waits", [True, False])
def test_buckets_are_those_of_their_step_on_the_device(tmp_path: Path, waits: bool) -> None:
    """A host that never waits issues steps long before the device runs them."""
    buckets = metrics(imported(GpuJob(waits=waits), tmp_path)).buckets
    assert buckets is not None
    assert [one.bucket for one in buckets] == [0, 1, 2, 3]
    assert [one.ready_s for one in buckets] == pytest.approx([0.012, 0.016, 0.020, 0.024], abs=5e-4)
    assert [one.end_s for one in buckets] == pytest.approx([0.013, 0.017, 0.021, 0.025], abs=5e-4)


@pytest.mark.parametrize("steps", [20, 60])
def test_an_evaluation_before_prof_step_belongs_to_the_next_step(tmp_path: Path, steps: int) -> None:
    job = GpuJob(steps=steps, every=5, evaluation=50_000.0)
    run = imported(job, tmp_path)
    result = explain(run).result
    found = the("sequential-evaluation", result)
    assert found.ranks == [0]
    all_s, step_s = steps // 5 * 0.05, simulated(replace(job, every=0))
    assert found.gain is not None
    assert found.loss_s_per_step is not None
    for lost_s in (found.loss_s_per_step * steps, (found.gain.value - 1) * steps * step_s):
        assert 0.99 * (all_s - 0.05) < lost_s < 1.01 * all_s  # nobody waits for the one after the last step
    assert metrics(run).phases["forward"] == pytest.approx(0.008, rel=0.01)


NAMES = {
    "folders of hosts": ("n0/gpu0.json", "n0/gpu1.json", "n1/gpu0.json", "n1/gpu1.json"),
    "names of hosts": ("node0_rank0.json", "node0_rank1.json", "node1_rank0.json", "node1_rank1.json"),
    "from 1": tuple(f"rank{number}.json" for number in range(1, 5)),
    "dates": tuple(f"trace_2026-11-29_{number}.json" for number in range(10, 14)),
    "dates with dots": tuple(f"trace-2026.11.29-{number}.json" for number in range(10, 14)),
    "many hosts": tuple(f"node{number}/gpu0.json" for number in (1, 2, 10, 11)),
}


@pytest.mark.parametrize("states", [True, False], ids=["calls state ranks", "nothing does"])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_ranks_are_told_by_calls_and_else_by_names(tmp_path: Path, names: tuple[str, ...], states: bool) -> None:
    """Each file has a process of its own, whose number shows which rank it became."""
    job = GpuJob(ranks=4, says_rank=False, buffers=True)
    simulated(job, tmp_path / "made")
    for number, name in enumerate(names):
        target = tmp_path / "traces" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "made" / f"rank{number}.json", target)
        if not states:
            target.write_text(target.read_text().replace('"Rank":', '"Nothing":'))
    done = brought_in(tmp_path)
    run = read_run(done.directory)
    assert run.record.ranks == 4, done.gaps
    assert [run.headers[rank].pid for rank in range(4)] == [4000, 4001, 4002, 4003], done.gaps
    assert not any("more than one file" in gap or "left none" in gap for gap in done.gaps)


@pytest.mark.parametrize("hosts", [1, 2])
def test_windows_of_one_process_are_of_one_rank(tmp_path: Path, hosts: int) -> None:
    """Its files have one number, too, and one after the other; on two hosts others have the same."""
    job = GpuJob(ranks=2 * hosts, says_rank=False)
    simulated(job, tmp_path / "made")
    for rank in range(job.ranks):
        text = (tmp_path / "made" / f"rank{rank}.json").read_text().replace('"Rank":', '"Nothing":')
        later = json.loads(text)
        later["baseTimeNanoseconds"] += 10_000_000_000
        for event in later["traceEvents"]:
            if event["name"].startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 100}"
        folder = tmp_path / "traces" / f"n{rank // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{rank % 2}.17{rank}.pt.trace.json").write_text(text)
        (folder / f"rank{rank % 2}.18{rank}.pt.trace.json").write_text(json.dumps(later))
    run = read_run(brought_in(tmp_path).directory)
    assert [run.headers[rank].pid for rank in range(job.ranks)] == list(range(4000, 4000 + job.ranks))
    assert run.steps.filter(run.steps["rank"] == 0).height == 2 * job.steps


def test_a_call_of_the_programs_own_is_no_bucket(tmp_path: Path) -> None:
    """Buffers are broadcast in each step, with kernels that a host is ahead of."""
    for waits in (True, False):
        buckets = metrics(imported(GpuJob(waits=waits, buffers=True), tmp_path / str(waits))).buckets
        assert buckets is not None
        assert [one.size_bytes for one in buckets] == [BUCKET * 4] * 4


def test_processes_of_containers_have_one_number(tmp_path: Path) -> None:
    simulated(GpuJob(ranks=4, says_rank=False), tmp_path / "made")
    for rank in range(4):
        text = (tmp_path / "made" / f"rank{rank}.json").read_text().replace('"Rank":', '"Nothing":')
        text = text.replace(f'"pid": {4000 + rank}', f'"pid": {17 + rank % 2}').replace("node1", f"node{rank // 2}")
        (tmp_path / "traces" / f"n{rank // 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "traces" / f"n{rank // 2}" / f"gpu{rank % 2}.json").write_text(text)
    run = read_run(brought_in(tmp_path).directory)
    assert [(run.headers[rank].host, run.headers[rank].pid) for rank in range(run.record.ranks)] == [
        ("node0", 17),
        ("node0", 18),
        ("node1", 17),
        ("node1", 18),
    ]


def test_a_copy_of_a_trace_is_no_other_rank(tmp_path: Path) -> None:
    simulated(GpuJob(says_rank=False), tmp_path / "traces")
    (tmp_path / "traces" / "copy").mkdir()
    shutil.copy(tmp_path / "traces" / "rank1.json", tmp_path / "traces" / "copy" / "rank1.json")
    assert read_run(brought_in(tmp_path).directory).record.ranks == 2


def test_time_blocked_in_collectives_is_no_network_where_a_rank_left_no_trace(tmp_path: Path) -> None:
    simulated(GpuJob(ranks=3, bucket=6000.0), tmp_path / "traces")
    whole = AlignedRun(read_run(brought_in(tmp_path).directory))
    assert "network-bound" in {one.rule for one in explain(whole).result.findings}
    (tmp_path / "traces" / "rank1.json").unlink()
    explained = explain(AlignedRun(read_run(brought_in(tmp_path).directory)))
    assert not explained.result.findings
    assert explained.result.waiting is None
    assert explained.result.phases.mean["transfer"] is None
    assert not any("collectives loses" in note for note in explained.result.notes)
    assert explained.result.healthy is None


def test_traces_of_other_networks_are_of_another_program(tmp_path: Path) -> None:
    """The elements of its gradients are what a trace shows of a program."""
    runs = []
    for buckets in (4, 2, 4):
        folder = tmp_path / str(len(runs))
        runs.append(imported(GpuJob(buckets=buckets), folder).data)
    one, smaller, again = runs
    assert one.record.spec == {"import": {"device": "accelerator", "gradients": 4 * BUCKET}}
    assert program(one.record).is_same(program(again.record))
    assert not program(one.record).is_same(program(smaller.record))
    unstated = one.record.model_copy(update={"spec": {}})
    assert program(unstated).is_same(program(one.record))
    assert program(one.record).is_same(program(unstated))
    sides = [facts(one)], [facts(smaller)]
    with pytest.raises(BadInput, match="elements of gradients"):
        check_comparable(*sides, differences(*sides), anyway=False)
    sides = [facts(one)], [facts(again)]
    assert not check_comparable(*sides, differences(*sides), anyway=False)


def test_a_reduce_scatter_of_gloo_is_one_call() -> None:
    """It reduces all, and each rank keeps its part; kernels of a device are of the operation that launched them."""
    trace = Trace()
    trace.queued = [Op(family="reduce_scatter", begin_ns=0, end_ns=10, thread=0, elements=8, is_certain=True)]
    run = Op(family="all_reduce", begin_ns=5, end_ns=30, thread=1, elements=16, is_certain=True)
    trace.run = [run]
    assert [(op is not None, ran is run) for op, ran in executions(trace)] == [(True, True)]
    run.on_device = True
    assert [(op is None, ran is None) for op, ran in executions(trace)] == [(False, True), (True, False)]


@pytest.mark.parametrize(("active", "cycle"), [(3, 10), (6, 10), (1, 5), (4, 4)])
def test_windows_of_a_profiler_are_explained_together(tmp_path: Path, active: int, cycle: int) -> None:
    """A few steps at a time are what schedules of torch's profiler record; the last rank is 4 ms late in all."""
    job = GpuJob(steps=100, slow=4000.0, window=(active, cycle))
    result = explain(imported(job, tmp_path)).result
    found = the("slow-rank", result)
    assert found.ranks == [1]
    assert found.gain is not None
    assert found.gain.value == pytest.approx(simulated(job) / simulated(replace(job, slow=0.0)), rel=0.01)
    assert result.window.steps == 100 // cycle * active
    assert result.window.seconds / result.window.steps == pytest.approx(simulated(job), rel=0.01)
