"""Traces of a job whose times are known: what is imported is what happened, by whatever name and clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bucket_moments import each_bucket
from tests.importers.made import MS, Job, document, gloo_events, nccl_events, play, save, save_all

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import BadInput
from allpull.importers.assemble import Imported, import_traces
from allpull.rundir.read.run import RunData, read_run
from allpull.schema.gap import texts

LATE = Job(ranks=2, steps=4, late={(step, 1): 6.0 for step in range(4)})
KERNELS = (
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "nccldevkernel_allreduce_sum_f32_ring_ll",
    "rcclKernel_AllReduce_RING",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
)


def imported(folder: Path, out: Path) -> tuple[Imported, RunData]:
    done = import_traces([folder], out=out)
    return done, read_run(done.directory)


def blocked_ms(run: RunData) -> dict[tuple[int, int], tuple[float, float]]:
    """Wait and transfer by step and rank, as the analysis has them."""
    frame = AlignedRun(run).steps
    found = {}
    for step, of_step in frame.group_by("step"):
        arrival = dict(zip(of_step["rank"], of_step["arrival_ns"], strict=True))
        done = dict(zip(of_step["rank"], of_step["done_ns"], strict=True))
        latest = max(arrival.values())
        for rank, its in arrival.items():
            wait = max(0, min(latest, done[rank]) - its)
            found[int(step[0]), rank] = (wait / MS, (done[rank] - its - wait) / MS)
    return found


def assert_true(job: Job, run: RunData, *, within_ms: float = 0.01) -> None:
    """Every step of every rank has its true phases, arrivals, waits and transfers."""
    truth = play(job)
    waits = blocked_ms(run)
    assert len(waits) == job.ranks * job.steps
    first = int(run.steps["step"].min())
    for (step, rank), (wait, transfer) in waits.items():
        true = truth[step - first][rank]
        assert wait == pytest.approx(true.wait, abs=within_ms)
        assert transfer == pytest.approx(true.transfer, abs=within_ms)
    phases = metrics(AlignedRun(run)).phases
    assert phases["input"] == pytest.approx(job.input_ms / 1000, abs=within_ms / 1000)
    assert phases["optimizer"] == pytest.approx(job.optimizer_ms / 1000, abs=within_ms / 1000)
    forward_ms = np.mean([[true.forward_end - true.fetched for true in of_step] for of_step in truth])
    assert phases["forward"] == pytest.approx(forward_ms / 1000, abs=within_ms / 1000)
    assert phases["backward"] == pytest.approx(sum(job.backward_ms) / 1000, abs=within_ms / 1000)


def test_gloo_gives_back_what_happened(tmp_path: Path) -> None:
    done, run = imported(save_all(tmp_path / "traces", LATE), tmp_path / "runs")
    assert done.unmatched is None
    assert_true(LATE, run)
    first = each_bucket(run.ready.filter(rank=0, step=3))
    assert (first["ready_ns"].to_numpy() - int(run.steps["begin_ns"][0])).tolist() == pytest.approx(
        [ready * MS for ready in play(LATE)[0][0].ready], abs=1000
    )
    assert [log.buckets[0].sizes_bytes for log in run.events.values()] == [[4000, 4004]] * 2


@pytest.mark.parametrize("gloo", [True, False], ids=["gloo", "nccl"])
def test_calls_of_the_program_cost_what_they_cost(tmp_path: Path, gloo: bool) -> None:
    late = {(step, step % 2): 4.0 for step in range(4)}
    job = Job(ranks=2, steps=4, call_ms=0.7, late_call=late)
    _, run = imported(
        save_all(tmp_path / "traces", job, gloo=gloo, **({} if gloo else {"seq": False})), tmp_path / "runs"
    )
    whole = AlignedRun(run)
    assert whole.matched.unmatched == 0
    calls = whole.matched.calls
    assert calls.height == 8
    for row in calls.iter_rows(named=True):
        is_late = (row["step"] - 3) % 2 == row["rank"]
        assert row["wait_ns"] / MS == pytest.approx(0 if is_late else 4.0, abs=0.02)
        assert row["transfer_ns"] / MS == pytest.approx(0.7, abs=0.02)
    phases = metrics(AlignedRun(run)).phases
    assert phases["wait"] == pytest.approx(0.002, abs=2e-5)
    assert phases["transfer"] == pytest.approx((0.7 + play(job)[0][0].transfer) / 1000, abs=2e-5)


def asynchronous_events(rank: int, steps: int) -> list[dict[str, Any]]:
    """A program that queues four all-reduces in 70 µs and then waits for all: rank 1 is 6 ms late, in 16 ms a step.

    Gloo's two threads end the first two of them in one order on rank 0 and in the other on rank 1.
    """
    events: list[dict[str, Any]] = []

    def add(name: str, begin: float, end: float, *, tid: int = 1, cat: str = "cpu_op", **args: Any) -> None:
        ts, us = round((10_000 + begin) * 1000, 3), round((end - begin) * 1000, 3)
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": us, "args": args})

    for step in range(steps):
        at = 16.0 * step
        late = at + 11.0  # rank 1 queues
        ready = late if rank else at + 5.0
        add(f"ProfilerStep#{step + 3}", at, at + 16.0, cat="user_annotation")
        add("aten::linear", at, ready - 3.0)
        add("autograd::engine::evaluate_function: AddmmBackward0", ready - 3.0, ready - 0.1)
        ends = (2.0, 2.5, 3.0, 4.0) if rank else (2.0, 1.0, 3.0, 4.0)
        for place, (size, end) in enumerate(zip((1000, 10, 1000, 10), ends, strict=True)):
            queued = ready + 0.02 * place
            add("c10d::allreduce_", queued, queued + 0.01, **{"Input Dims": [[[size]]], "Input type": ["TensorList"]})
            facts = {"Input Dims": [[size]], "Input type": ["float"]}
            begin = max(queued + 0.01, late + ends[place - 2]) if place > 1 else queued + 0.01
            add("gloo:all_reduce", begin, late + end, tid=2 + place % 2, cat="user_annotation", **facts)
        add("Optimizer.step#SGD.step", late + 4.1, late + 4.6, cat="user_annotation")
    return events


def test_calls_that_are_waited_for_together_meet_in_the_order_of_calling(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        save(folder / f"rank{rank}.json", document(LATE, rank, asynchronous_events(rank, 5)))
    _, run = imported(folder, tmp_path / "runs")
    whole = AlignedRun(run)
    calls = whole.matched.calls
    assert (calls.height, whole.matched.unmatched) == (40, 0)
    for of_step in calls.partition_by("rank", "step"):
        assert of_step["end_ns"].is_sorted()
        waits = [6.0 - 0.07, 0, 0, 0] if of_step["rank"][0] == 0 else [0, 0, 0, 0]
        assert (of_step["wait_ns"] / MS).to_list() == pytest.approx(waits, abs=0.08)
        assert of_step["blocked_ns"].sum() / MS == pytest.approx(10 - 0.07 if waits[0] else 4 - 0.07, abs=0.01)
    found = metrics(whole)
    assert not whole.buckets.gaps
    assert not found.buckets
    waited = {use.size_bytes: (use.calls_per_step, use.wait_s) for use in found.collectives}
    assert waited[4000] == (2, pytest.approx(0.006 / 4, abs=2e-5))  # rank 0 waits in the first of two calls
    assert waited[40] == (2, pytest.approx(0, abs=2e-5))


def test_a_call_that_nobody_waits_for_costs_nothing(tmp_path: Path) -> None:
    """It runs while the main thread computes on."""
    folder = tmp_path / "traces"
    folder.mkdir()
    job = Job(ranks=2, steps=4, call_ms=3.0)
    for rank in range(2):
        events = gloo_events(job, rank)
        for event in [one for one in events if one["name"] == "c10d::allreduce_" and not one["args"]]:
            events.append(event | {"name": "aten::mm", "ts": event["ts"] + 20, "dur": 3000})
        save(folder / f"rank{rank}.json", document(job, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    assert run.collectives["blocked_ns"].null_count() == run.collectives.height == 8
    assert run.steps["collective_ns"].sum() == 0


def test_what_the_device_did_is_told_apart(tmp_path: Path) -> None:
    """Input of 1 ms, of which 0.4 ms are a copy to the device; and a host that issues nothing for 2 ms."""
    folder = tmp_path / "traces"
    folder.mkdir()
    job = Job(ranks=2, steps=4)
    for rank in range(2):
        events = nccl_events(job, rank)
        for event in list(events):
            if event["name"].startswith("enumerate"):
                begin = event["ts"] + 600
                copy = {
                    "ph": "X",
                    "cat": "gpu_memcpy",
                    "name": "Memcpy HtoD (Pinned -> Device)",
                    "ts": begin,
                    "dur": 400,
                }
                events.append({**copy, "pid": 0, "tid": 7, "args": {"correlation": 10**6 + len(events)}})
            elif event["name"] == "void gemm()":
                event["dur"] -= 2000
        save(folder / f"rank{rank}.json", document(job, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    phases = metrics(AlignedRun(run)).phases
    assert phases["copy"] == pytest.approx(0.0004, abs=1e-6)
    assert phases["input"] == pytest.approx(0.0006, abs=1e-6)
    assert phases["host"] == pytest.approx(0.002, abs=1e-5)
    assert phases["forward"] == pytest.approx(0.002, abs=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("says", [True, False], ids=["metadata", "names"])
def test_kernels_of_any_age_give_back_what_happened(tmp_path: Path, kernel: str, says: bool) -> None:
    folder = save_all(tmp_path / "traces", LATE, gloo=False, kernel=kernel, says=says)
    done, run = imported(folder, tmp_path / "runs")
    assert done.unmatched is None
    assert_true(LATE, run)


def test_kernels_that_nobody_was_seen_to_launch_give_back_what_happened(tmp_path: Path) -> None:
    """As in a CUDA graph: a kernel that waited behind another began late, and its data were there before."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events = [event for event in nccl_events(LATE, rank) if event["cat"] != "cuda_runtime"]
        save(folder / f"rank{rank}.json", document(LATE, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    assert_true(LATE, run)


def test_steps_whose_ends_are_stamped_too_late_end_where_the_next_begins(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events = gloo_events(LATE, rank)
        for event in events:
            event["dur"] += 300 * event["name"].startswith("ProfilerStep")
        save(folder / f"rank{rank}.json", document(LATE, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    assert_true(LATE, run)
    assert (run.steps["begin_ns"].diff().filter(run.steps["step"].diff() == 1) > 0).all()


def test_a_kernel_by_an_unheard_of_name_is_found_by_its_metadata(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", LATE, gloo=False, kernel="fancy_kernel_v9()", says=True)
    assert_true(LATE, imported(folder, tmp_path / "runs")[1])


def test_that_nothing_matched_is_said_first(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events = [event for event in gloo_events(LATE, rank) if "allreduce" not in event["name"].replace("_", "")]
        save(folder / f"rank{rank}.json", document(LATE, rank, events))
    done, run = imported(folder, tmp_path / "runs")
    assert done.unmatched is not None
    assert "no collective was recognised" in done.unmatched
    assert done.gaps[0] == done.unmatched
    assert done.unmatched in texts(run.gaps)
    assert metrics(AlignedRun(run)).phases["wait"] is None


def test_ranks_of_different_calls_do_not_match(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events = nccl_events(LATE, rank, seq=False)
        for event in events:
            if "In msg nelems" in event["args"]:
                event["args"]["In msg nelems"] += 7 * rank
                event["args"]["Out msg nelems"] += 7 * rank
        save(folder / f"rank{rank}.json", document(LATE, rank, events))
    done, _ = imported(folder, tmp_path / "runs")
    assert done.unmatched is not None
    assert "none of 16 collectives was recorded on more than one rank" in done.unmatched


@pytest.mark.parametrize("gloo", [True, False], ids=["gloo", "nccl"])
@pytest.mark.parametrize("missing", [0, 1])
def test_what_is_said_to_match_is_what_the_analysis_matches(tmp_path: Path, gloo: bool, missing: int) -> None:
    job = Job(ranks=3, steps=4, call_ms=0.5)
    folder = save_all(tmp_path / "traces", job, gloo=gloo)
    for rank in range(3 - missing, 3):
        (folder / f"rank-{rank}.json.gz").unlink()
    done, run = imported(folder, tmp_path / "runs")
    matched = AlignedRun(run).matched
    if missing:
        assert "; 0 of 12 collectives recorded on every participating rank" in done.summary
        assert "12 of 12 collectives were recorded on several ranks, none on every" in str(done.unmatched)
        assert done.gaps[0] == done.unmatched
        assert matched.unmatched == matched.calls.height > 0
    else:
        assert "; 12 of 12 collectives recorded on every participating rank" in done.summary
        assert done.unmatched is None
        assert matched.unmatched == 0 < matched.calls.height


def test_files_of_several_jobs_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, job in enumerate((LATE, Job(ranks=64, steps=4))):
        save(folder / f"rank-{rank}.json", document(job, rank, gloo_events(LATE, rank)))
    with pytest.raises(BadInput, match="several jobs: they state different world sizes") as refused:
        import_traces([folder], out=tmp_path / "runs")
    assert "rank-0.json: 2" in str(refused.value)
    assert "rank-1.json: 64" in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_jobs_are_told_apart_by_the_group_of_all_ranks_where_no_header_tells(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, job in enumerate((LATE, Job(ranks=3, steps=4))):
        save(folder / f"rank-{rank}.json", document(job, rank, nccl_events(job, rank), told=False))
    with pytest.raises(BadInput, match="several jobs"):
        import_traces([folder], out=tmp_path / "runs")


@pytest.mark.parametrize("told", [True, False], ids=["distributedInfo", "file names"])
def test_ranks_are_told_by_the_trace_or_by_its_name(tmp_path: Path, told: bool) -> None:
    done, run = imported(save_all(tmp_path / "traces", LATE, told=told), tmp_path / "runs")
    assert run.record.ranks == 2
    assert_true(LATE, run)
    assert not [gap for gap in done.gaps if "no rank" in gap]


def test_files_that_tell_no_rank_are_numbered_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, name in enumerate(("alpha.pt.json", "beta.pt.json")):
        save(folder / name, document(LATE, rank, gloo_events(LATE, rank), told=False))
    done, run = imported(folder, tmp_path / "runs")
    assert_true(LATE, run)
    assert any("2 files (alpha.pt.json) state no rank" in gap for gap in done.gaps)


@pytest.mark.parametrize("gloo", [True, False], ids=["gloo", "nccl"])
def test_clocks_of_hosts_are_aligned_by_their_collectives(tmp_path: Path, gloo: bool) -> None:
    late = {(step, step % 4): 5.0 for step in range(12)}
    hosts = ("a", "b")
    still = Job(ranks=4, steps=12, hosts=hosts, late=late)
    apart = Job(ranks=4, steps=12, hosts=hosts, late=late, clock_ms={"b": 2500.0}, drift={"b": 30e-6})
    _, run = imported(save_all(tmp_path / "traces", apart, gloo=gloo), tmp_path / "runs")
    clock = AlignedRun(run).clock
    assert clock.bound_s is not None
    assert 0 < clock.bound_s < 0.003  # two transfers of 1 ms leave it no more
    truth = play(still)
    for (step, rank), (wait, _) in blocked_ms(run).items():
        assert wait == pytest.approx(truth[step - 3][rank].wait, abs=clock.bound_s * 1000)


def test_a_constant_on_one_clock_changes_nothing(tmp_path: Path) -> None:
    late = {(step, step % 2): 5.0 for step in range(8)}
    found = []
    for offset_ms in (0.0, 3_600_000.0):
        job = Job(ranks=2, steps=8, hosts=("a", "b"), late=late, clock_ms={"b": offset_ms})
        _, run = imported(save_all(tmp_path / f"traces{offset_ms}", job), tmp_path / "runs")
        found.append(blocked_ms(run))
    assert found[0].keys() == found[1].keys()
    for key, (wait, transfer) in found[0].items():
        assert found[1][key] == pytest.approx((wait, transfer), abs=0.002)


def test_machines_that_go_under_one_name_have_clocks_of_their_own(tmp_path: Path) -> None:
    late = {(step, step % 2): 5.0 for step in range(8)}
    job = Job(ranks=2, steps=8, hosts=("a", "b"), late=late, clock_ms={"b": 900.0})
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        save(folder / f"rank{rank}.json", document(job, rank, gloo_events(job, rank)) | {"host_name": "localhost"})
    done, run = imported(folder, tmp_path / "runs")
    assert any("ranks that name the same host, localhost, contradict each other" in gap for gap in done.gaps)
    assert {header.host for header in run.headers.values()} == {"localhost/0", "localhost/1"}
    truth = play(job)
    for (step, rank), (wait, _) in blocked_ms(run).items():
        assert wait == pytest.approx(truth[step - 3][rank].wait, abs=(AlignedRun(run).clock.bound_s or 0) * 1000)


def test_one_host_needs_no_alignment(tmp_path: Path) -> None:
    _, run = imported(save_all(tmp_path / "traces", LATE), tmp_path / "runs")
    assert AlignedRun(run).clock.bound_s == 0
    assert all(header.compared is None for header in run.headers.values())


def test_steps_are_told_by_optimizers_where_nobody_called_step(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events = [event for event in gloo_events(LATE, rank) if not event["name"].startswith("ProfilerStep")]
        save(folder / f"rank{rank}.json", document(LATE, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    assert {header.boundary for header in run.headers.values()} == {"optimizer.step"}
    assert_true(LATE, run)


def test_steps_are_told_by_backward_where_no_optimizer_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events = [event for event in gloo_events(LATE, rank) if not event["name"].startswith(("Profiler", "Optim"))]
        save(folder / f"rank{rank}.json", document(LATE, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    assert {header.boundary for header in run.headers.values()} == {"backward"}
    truth = play(LATE)
    for (step, rank), (wait, transfer) in blocked_ms(run).items():
        assert (wait, transfer) == pytest.approx((truth[step][rank].wait, truth[step][rank].transfer), abs=0.01)


@pytest.mark.parametrize("seq", [True, False], ids=["numbers", "time"])
def test_ranks_that_began_recording_at_different_steps_are_set_side_by_side(tmp_path: Path, seq: bool) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    job = Job(ranks=2, steps=6, late={(step, 1): 3.0 for step in range(6)})
    first = play(job)[1][1].end  # rank 1 begins two steps later
    for rank in range(2):
        events = [one for one in nccl_events(job, rank, seq=seq) if not one["name"].startswith("ProfilerStep")]
        if rank == 1:
            events = [one for one in events if one["ts"] >= (10_000 + first) * 1000 - 0.5]
        save(folder / f"rank{rank}.json", document(job, rank, events))
    _, run = imported(folder, tmp_path / "runs")
    steps = {rank: run.steps.filter(rank=rank)["step"].to_list() for rank in range(2)}
    assert steps == {0: [0, 1, 2, 3, 4, 5], 1: [2, 3, 4, 5]}


def test_windows_of_one_rank_are_put_one_after_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    job = Job(ranks=2, steps=6)
    middle = 10_000_000 + play(job)[2][0].end * 1000
    for rank in range(2):
        events = gloo_events(job, rank)
        early = [event for event in events if event["ts"] < middle - 1]
        late = [event for event in events if event["ts"] >= middle - 1]
        save(folder / f"rank{rank}.100.json", document(job, rank, early))
        save(folder / f"rank{rank}.200.json", document(job, rank, late))
    _, run = imported(folder, tmp_path / "runs")
    assert_true(job, run)
    assert [(window.first_step, window.steps) for window in run.events[0].traces] == [(3, 3), (6, 3)]


def test_a_profiler_that_was_started_twice_counts_on(tmp_path: Path) -> None:
    """A second ``profile`` counts its steps from 0 again, which are no copies of the first ones."""
    folder = tmp_path / "traces"
    folder.mkdir()
    job = Job(ranks=2, steps=6)
    middle = 10_000_000 + play(job)[2][0].end * 1000
    for rank in range(2):
        events = gloo_events(job, rank)
        for event in events:
            if event["name"].startswith("ProfilerStep#") and event["ts"] >= middle - 1:
                event["name"] = f"ProfilerStep#{int(event['name'][13:]) - 3}"
        save(folder / f"rank{rank}.1.json", document(job, rank, [one for one in events if one["ts"] < middle - 1]))
        save(folder / f"rank{rank}.2.json", document(job, rank, [one for one in events if one["ts"] >= middle - 1]))
    _, run = imported(folder, tmp_path / "runs")
    assert run.steps.filter(rank=1)["step"].to_list() == list(range(6))
    assert_true(job, run)


def test_a_file_given_twice_counts_once(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", LATE)
    save(folder / "rank-0-copy.json", document(LATE, 0, gloo_events(LATE, 0)))
    done, run = imported(folder, tmp_path / "runs")
    assert_true(LATE, run)
    assert any("4 steps recorded in more than one file" in gap for gap in done.gaps)
    done = import_traces([folder / "rank-0.json.gz", folder / "rank-0.json.gz", folder], out=tmp_path / "again")
    assert read_run(done.directory).record.ranks == 2


def test_of_some_ranks_of_a_job_no_waiting_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    job = Job(ranks=4, steps=4)
    for rank in (1, 3):
        save(folder / f"rank{rank}.json", document(job, rank, nccl_events(job, rank)))
    done, run = imported(folder, tmp_path / "runs")
    assert run.record.ranks == 2
    assert any("traces of 2 ranks of 4: ranks 0, 2 left none" in gap for gap in done.gaps)
    assert any("1 becomes 0, 3 becomes 1" in gap for gap in done.gaps)
    found = metrics(AlignedRun(run))
    assert found.phases["wait"] is None
    assert found.phases["forward"] == pytest.approx(0.004, abs=1e-5)
    assert any("ranks of which nothing was recorded may have come later" in gap for gap in found.gaps)


def test_raw_traces_are_kept(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", LATE)
    before = (folder / "rank-0.json.gz").read_bytes()
    _, run = imported(folder, tmp_path / "runs")
    assert (run.directory / run.events[0].traces[0].file).read_bytes() == before


def test_what_is_imported_can_be_shown_and_reported(tmp_path: Path, run_cli: Any, run_here: Any) -> None:
    folder = save_all(tmp_path / "traces", LATE)
    done = run_cli("import", str(folder), "-o", str(tmp_path / "runs"), "--name", "job <b>")
    assert done.returncode == 0, done.stderr
    directory = done.stderr.splitlines()[-1].removeprefix("run directory: ")
    assert (
        "2 ranks, 4 steps each, delimited by ProfilerStep; 8 of 8 collectives recorded on every participating rank"
        in done.stderr
    )
    shown = run_here("show", directory, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["runs"][0]["phases"]["wait"] == pytest.approx(0.003, abs=1e-5)
    words = " ".join(run_here("show", directory).stdout.replace("•", " ").split())
    assert "has no throughput. " in words
    assert words.count("samples of some steps were not recorded") == 1  # among the gaps, and in no sentence
    drawn = run_here("show", directory, "--perfetto", str(tmp_path / "all.json"))
    assert drawn.returncode == 0, drawn.stderr
