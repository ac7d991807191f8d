"""Whether workers of loaders live on from one epoch to the next, told by the iterators that their events name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from tests.explain.made import STEPS, found, job
from tests.replay.windows import late

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.loading.loader_pace import keeps_workers, loader_pace, worker_counts
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.schema.events import EpochMark, LoaderWork


def made(loader: int, first_step: int, step: int) -> LoaderWork:
    return LoaderWork(
        kind="loader", loader=loader, first_step=first_step, step=step, batches=[3], making_ns=[10**6], t_ns=step
    )


@pytest.mark.parametrize(
    ("loaders", "kept"),
    [
        ((made(1, 0, 9), made(1, 9, 24)), True),
        ((made(1, 0, 12), made(2, 12, 24)), False),
        ((made(1, 0, 13), made(2, 12, 24)), False),  # it ended while the first step of the next epoch ran
        ((), False),
    ],
)
def test_workers_are_kept_where_one_iterator_goes_on(
    make_records: Callable[..., pl.DataFrame],
    make_data: Callable[..., RunData],
    make_log: Callable[..., EventLog],
    loaders: tuple[LoaderWork, ...],
    *,
    kept: bool,
) -> None:
    epochs = [EpochMark(kind="epoch", epoch=number, step=12 * number, t_ns=number) for number in range(2)]
    run = make_data(make_records([[100.0]]), 1, events={0: make_log(0, epochs=tuple(epochs), loaders=loaders)})
    assert keeps_workers(run) is kept


def test_one_slow_worker_sets_the_pace_of_its_rank_and_is_told(
    make_records: Callable[..., pl.DataFrame], make_data: Callable[..., RunData], make_log: Callable[..., EventLog]
) -> None:
    """Batches are taken from workers in turn: two of which one takes 80 ms make one every 40 ms, not every 14.5 ms."""

    def work(each_ms: tuple[int, int]) -> LoaderWork:
        making_ns = [30 * one * 10**6 for one in each_ms]
        return LoaderWork(kind="loader", loader=1, first_step=0, step=60, batches=[30, 30], making_ns=making_ns, t_ns=9)

    logs = {rank: make_log(rank, loaders=(work(each),)) for rank, each in enumerate([(80, 8), (8, 8)])}
    run = make_data(make_records([[100.0, 100.0]]), 2, events=logs)
    pace = loader_pace(run, np.arange(60))
    assert pace is not None
    assert pace.slowest is not None
    assert pace.slowest.tolist() == [10.0, 1.0]
    assert pace.step_s.tolist() == pytest.approx([0.04, 0.004])


def test_a_rank_with_fewer_workers_than_the_others_is_told_so(
    make_records: Callable[..., pl.DataFrame], make_data: Callable[..., RunData], make_log: Callable[..., EventLog]
) -> None:
    """Ranks 0 and 2 have three workers, rank 1 has one; what a program without steps in the window had is not asked."""

    def work(workers: int, *, step: int = 60) -> LoaderWork:
        numbers = {"batches": [20] * workers, "making_ns": [10**9] * workers}
        return LoaderWork(kind="loader", loader=1, first_step=step - 60, step=step, **numbers, t_ns=step)

    logs = {rank: make_log(rank, loaders=(work(count), work(8, step=200))) for rank, count in enumerate((3, 1, 3))}
    run = make_data(make_records([[100.0, 100.0, 100.0]]), 3, events=logs)
    counts = worker_counts(run, np.arange(60))
    assert counts == (3, 1, 3)
    assert loader_pace(run, np.arange(60)) is None
    window = job(3, input=late(3, STEPS, rank=1, by_s=0.03))
    (finding,) = found(window, Machine(hosts=("node1",) * 3, started=4), worker_counts=counts).findings
    assert (finding.rule, finding.ranks) == ("slow-loader-rank", [1])
    assert finding.remedy == "give that rank as many loader workers as the others: DataLoader(num_workers=3)"
    assert [one.value for one in finding.evidence if "loader workers" in one.what or "the same" in one.what] == [1, 3]


def test_numbers_of_workers_that_are_not_known_of_all_ranks_are_not_compared(
    make_records: Callable[..., pl.DataFrame], make_data: Callable[..., RunData], make_log: Callable[..., EventLog]
) -> None:
    logs = {0: make_log(0, loaders=(made(1, 0, 60),)), 1: make_log(1)}
    assert worker_counts(make_data(make_records([[100.0, 100.0]]), 2, events=logs), np.arange(60)) == ()
