"""A step may reduce several times: each reduction is a meeting of its own, and what they cost adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from allpull.analyse.collectives.reductions import FIRST, every_reduction
from allpull.analyse.collectives.waiting import reductions
from allpull.analyse.steps.grid import arrange
from allpull.analyse.steps.phases import Phases, split
from allpull.rundir.read.reductions import SCHEMA

MakeRecords = Callable[..., pl.DataFrame]
MS = 1_000_000
BASE_NS = 10**12


def listed(*entries: tuple[int, int, int, int, int, int]) -> pl.DataFrame:
    """Reductions of step 0, in ms since it began: rank, place, network, begin, arrival, done."""
    rows: list[dict[str, Any]] = []
    for rank, place, network, *moments in entries:
        begin, arrival, done = (BASE_NS + moment * MS for moment in moments)
        spent = dict.fromkeys(("input_ns", "copy_ns", "forward_ns", "backward_ns", "optimizer_ns"), 0)
        row = {"rank": rank, "step": 0, "reduction": place, "network": network, "begin_ns": begin, "done_ns": done}
        rows.append({**row, **spent, "arrival_ns": arrival, "ready_ns": [arrival]})
    return pl.DataFrame(rows, schema=SCHEMA)


def steps_of(make_records: MakeRecords) -> pl.DataFrame:
    """A step of 200 ms on two ranks, 150 of them in backward, whose last reduction was from 150 and 160 to 170."""
    return make_records([[200, 200]], backward=[[150, 150]], arrival=[[150, 160]], done=[[170, 170]])


def phases_of(steps: pl.DataFrame, entries: pl.DataFrame) -> Phases:
    return split(arrange(steps, np.arange(1), 2, every_reduction(steps, entries)), one_clock=True)


TWO_PASSES = (
    (0, 0, 0, 10, 20, 60),
    (0, 1, 0, 100, 150, 170),
    (1, 0, 0, 30, 50, 62),
    (1, 1, 0, 100, 160, 170),
)


def test_waits_of_all_passes_add_up(make_records: MakeRecords) -> None:
    """Rank 0 waits for rank 1 from 20 to 50 and from 150 to 160; both then transfer 10 to 12 and 10 ms."""
    phases = phases_of(steps_of(make_records), listed(*TWO_PASSES))
    times = {name: None if of is None else (1000 * of[0]).round(6).tolist() for name, of in phases.seconds.items()}
    assert times["wait"] == [40, 0]
    assert times["transfer"] == [20, 22]
    assert times["backward"] == [90, 128]
    assert phases.gaps == ()


def test_a_step_without_a_list_has_its_own_reduction(make_records: MakeRecords) -> None:
    steps = steps_of(make_records)
    every = every_reduction(steps, listed())
    assert every["networks"].to_list() == [FIRST, FIRST]
    assert every["arrival_ns"].to_list() == steps["arrival_ns"].to_list()
    assert reductions(every, 2)["wait_ns"].to_list() == [10 * MS, 0]


def test_networks_of_one_pass_meet_once_when_the_last_of_them_is_ready() -> None:
    entries = listed((0, 0, 0, 10, 40, 60), (0, 1, 1, 10, 30, 60), (1, 0, 0, 10, 20, 60), (1, 1, 1, 10, 50, 60))
    steps = pl.DataFrame({"rank": [0, 1], "step": [0, 0], "arrival_ns": [None, None], "done_ns": [None, None]})
    every = every_reduction(steps.cast(pl.Int64), entries)
    assert every["networks"].to_list() == ["0+1", "0+1"]
    assert reductions(every, 2).select("reduction", "reduced_ns", "wait_ns", "transfer_ns").rows() == [
        (0, 20 * MS, 10 * MS, 10 * MS),
        (0, 10 * MS, 0, 10 * MS),
    ]


@pytest.mark.parametrize(
    "entries",
    [
        (TWO_PASSES[0], TWO_PASSES[1], TWO_PASSES[2]),  # rank 1 reduced once
        (TWO_PASSES[0], TWO_PASSES[1], TWO_PASSES[2], (1, 1, 5, 100, 160, 170)),  # of another network
    ],
)
def test_where_ranks_count_differently_the_time_is_other_and_a_gap_says_so(
    make_records: MakeRecords, entries: tuple[tuple[int, int, int, int, int, int], ...]
) -> None:
    phases = phases_of(steps_of(make_records), listed(*entries))
    wait = phases.seconds["wait"]
    assert wait is not None
    assert wait[0].tolist() == [pytest.approx(0.030), 0.0]  # of the first, which all recorded alike
    (gap,) = phases.gaps
    assert gap.kind == "blocked in other"
    assert "reduced gradients differently often" in gap.text
