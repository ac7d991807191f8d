"""Traces of several jobs, told by when they were recorded: refused in one sentence, and no run of theirs is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.importers.made import BASE_NS, Job, document, gloo_events, save

from allpull.errors import BadInput
from allpull.importers.assemble import import_traces
from allpull.rundir.read.run import read_run

DAY_NS = 86_400_000_000_000
JOB = Job(ranks=2, steps=4)


def recorded(folder: Path, at_ns: dict[str, int]) -> Path:
    """Traces of ``JOB`` by the name of the file, each begun so long after the first; no size of a job is told."""
    folder.mkdir()
    for name, after_ns in at_ns.items():
        rank = int(name.partition("-")[2].partition(".")[0])
        trace = document(JOB, rank, gloo_events(JOB, rank), told=False)
        save(folder / name, {**trace, "baseTimeNanoseconds": BASE_NS + after_ns})
    return folder


def test_ranks_that_were_recorded_years_apart_are_of_several_jobs(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "traces", {"rank-0.json": 0, "rank-1.json": 730 * DAY_NS})
    with pytest.raises(BadInput) as refused:
        import_traces([folder], out=tmp_path / "runs")
    lines = refused.value.message.splitlines()
    assert lines[0] == "these files belong to several jobs: they were recorded 730 days apart"
    assert [line.strip() for line in lines[1:]] == ["2026-09-21: rank-0.json", "2028-09-20: rank-1.json"]
    assert "one job at a time" in refused.value.hint
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "after_days",
    [{"rank-0.json": 0.0, "rank-1.json": 2.0}, {"rank-0.a.json": 0.0, "rank-1.a.json": 0.0, "rank-0.b.json": 31.0}],
    ids=["another rank after days", "the same rank after a month"],
)
def test_what_lies_too_far_apart_for_one_job_is_refused(tmp_path: Path, after_days: dict[str, float]) -> None:
    folder = recorded(tmp_path / "traces", {name: round(days * DAY_NS) for name, days in after_days.items()})
    with pytest.raises(BadInput, match="several jobs"):
        import_traces([folder], out=tmp_path / "runs")


def test_a_profiler_that_comes_back_every_few_days_is_of_one_job(tmp_path: Path) -> None:
    cycles = {f"rank-{rank}.{day}.json": day * DAY_NS for rank in range(2) for day in (0, 5, 10)}
    done = import_traces([recorded(tmp_path / "traces", cycles)], out=tmp_path / "runs")
    assert read_run(done.directory).steps.height == 2 * 3 * JOB.steps


def test_a_clock_that_is_wrong_by_an_hour_is_no_other_job(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "traces", {"rank-0.json": 0, "rank-1.json": DAY_NS // 24})
    assert read_run(import_traces([folder], out=tmp_path / "runs").directory).record.ranks == 2


def test_stamps_that_count_from_the_start_of_a_machine_are_no_dates(tmp_path: Path) -> None:
    """Hosts that were started weeks apart, by a profiler that writes no date."""
    folder = recorded(tmp_path / "traces", {"rank-0.json": -BASE_NS, "rank-1.json": 60 * DAY_NS - BASE_NS})
    assert read_run(import_traces([folder], out=tmp_path / "runs").directory).record.ranks == 2
