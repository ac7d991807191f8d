"""Whether workers of loaders live on from one epoch to the next, told by the iterators that their events name."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from allpull.explain.evidence.loader_pace import keeps_workers
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
