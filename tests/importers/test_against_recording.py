"""Two real Gloo ranks, recorded by allpull and by torch.profiler at once: both must tell the same story."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.bucket_moments import each_bucket

from allpull.analyse.aligned import AlignedRun
from allpull.importers.assemble import import_traces
from allpull.rundir.read.places import find_runs
from allpull.rundir.read.run import RunData, read_run

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.alone]  # clocks are compared to a millisecond

LATE_MS = 40
PROGRAM = f"""
    import sys, time, torch, torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)) for _ in range(4)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 10)), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(640, 256), torch.randint(0, 10, (640,)))

    def save(profiler):
        profiler.export_chrome_trace(f"{{sys.argv[1]}}/trace_{{rank}}.json")

    plan = schedule(wait=2, warmup=2, active=12)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan, on_trace_ready=save) as profiler:
        for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=32)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            if rank == step % 2:
                time.sleep({LATE_MS / 1000})
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            profiler.step()
            if step == 17:
                break
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, RunData]:
    """The run as allpull recorded it, and as it was imported from the traces of the profiler."""
    from tests.conftest import allpull  # noqa: PLC0415  a module-scoped fixture cannot ask for run_cli

    folder = tmp_path_factory.mktemp("both")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "traces").mkdir()
    ran = allpull(
        "run", "-n", "2", "--out", str(folder / "runs"), "--", "program.py", str(folder / "traces"), cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    done = import_traces([folder / "traces"], out=folder / "imported")
    assert done.unmatched is None
    return read_run(find_runs(folder / "runs")[0]), read_run(done.directory)


def real_time(run: RunData, whole: AlignedRun, names: tuple[str, ...]) -> pl.DataFrame:
    """Moments of all steps on the real-time clock, which torch stamps."""
    header = run.headers[0].clock
    ahead_ns = header.realtime_ns - header.monotonic_ns
    return whole.steps.select("rank", "step", *(pl.col(name) + ahead_ns for name in names)).sort("rank", "step")


def test_arrivals_and_ends_of_reductions_agree(both: tuple[RunData, RunData]) -> None:
    recorded, imported = both
    ours = real_time(recorded, AlignedRun(recorded), ("arrival_ns", "done_ns"))
    theirs = real_time(imported, AlignedRun(imported), ("arrival_ns", "done_ns"))
    assert theirs.height == 2 * 12
    found = theirs.join(ours, on=["rank", "step"], suffix="_ours")  # both count from 0
    assert found.height == theirs.height
    for name in ("arrival_ns", "done_ns"):
        apart_ms = ((found[name] - found[f"{name}_ours"]) / 1e6).abs()
        assert apart_ms.median() < 1.0, (name, apart_ms.to_list())  # of the profiler's own, on a machine that is shared


def test_waiting_and_transfer_agree(both: tuple[RunData, RunData]) -> None:
    totals = []
    for run in both:
        steps = AlignedRun(run).steps.filter(pl.col("step").is_in(both[1].steps["step"].unique().to_list()))
        last = pl.col("arrival_ns").max().over("step")
        wait = pl.max_horizontal(pl.min_horizontal(last, "done_ns") - pl.col("arrival_ns"), 0) / 1e6
        transfer = pl.max_horizontal(pl.col("done_ns") - last, 0) / 1e6
        totals.append(steps.select("rank", "step", wait=wait, transfer=transfer).sort("rank", "step"))
    recorded, imported = totals
    for name in ("wait", "transfer"):
        apart = np.abs(recorded[name].to_numpy() - imported[name].to_numpy())
        assert np.median(apart) < 1.5, name
    late = (imported["step"] % 2) == imported["rank"]
    assert imported.filter(~late)["wait"].median() == pytest.approx(LATE_MS, rel=0.25)
    assert imported.filter(late)["wait"].median() < LATE_MS / 4


def test_buckets_and_collectives_agree(both: tuple[RunData, RunData]) -> None:
    recorded, imported = both
    assert imported.events[0].buckets[-1].sizes_bytes == recorded.events[0].buckets[-1].sizes_bytes
    kinds = {(kind.op, kind.size_bytes) for kind in imported.events[0].collective_kinds}
    assert ("all_reduce", 4) in kinds
    window = imported.steps["step"].unique().to_list()
    calls = [run.collectives.filter(pl.col("step").is_in(window)).height for run in both]
    assert calls[1] >= calls[0]  # DDP broadcasts its buffers in parts, which allpull records as one
    whole = AlignedRun(imported)
    assert whole.matched.unmatched == 0
    moments, ours = (each_bucket(run.ready) for run in both[::-1])
    assert moments.join(ours, on=["rank", "step", "bucket"]).height >= moments.height * 0.9


def test_bucket_moments_agree(both: tuple[RunData, RunData]) -> None:
    recorded, imported = both
    ahead_ns = [run.headers[0].clock.realtime_ns - run.headers[0].clock.monotonic_ns for run in both]
    moments, ours = each_bucket(imported.ready), each_bucket(recorded.ready)
    ready = moments.join(ours, on=["rank", "step", "bucket"], suffix="_ours")
    apart_ms = ((ready["ready_ns"] + ahead_ns[1] - ready["ready_ns_ours"] - ahead_ns[0]) / 1e6).abs()
    assert apart_ms.median() < 1.0


def test_phases_agree(both: tuple[RunData, RunData]) -> None:
    """Forward is measured by different means: torch's annotation of DDP, and our hook around it."""
    window = both[1].steps["step"].unique().to_list()
    for name in ("input_ns", "forward_ns", "optimizer_ns"):
        means = [run.steps.filter(pl.col("step").is_in(window))[name].median() for run in both]
        assert means[1] == pytest.approx(means[0], rel=0.5, abs=1e6), name


def test_the_run_can_be_shown(both: tuple[RunData, RunData], run_cli: Any) -> None:
    shown = run_cli("show", str(both[1].directory), "--json")
    assert shown.returncode == 0, shown.stderr
    phases = json.loads(shown.stdout)["runs"][0]["phases"]
    assert phases["wait"] == pytest.approx(LATE_MS / 2000, rel=0.4)
