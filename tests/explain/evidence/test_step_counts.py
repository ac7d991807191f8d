"""How many steps each rank made, from records that miss some reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.explain.evidence.step_counts import reducing_steps
from allpull.schema.events import End


@pytest.fixture
def counts(make_records: Callable[..., Any], make_data: Callable[..., Any], make_log: Callable[..., Any]) -> Any:
    """``counts("rr.r", "rrrr")``: of ranks with a character a step, r: its reduction was recorded."""

    def count(*ranks: str) -> list[int] | None:
        steps = max(map(len, ranks))
        table = [[10.0] * len(ranks)] * steps
        known = [[5.0 if rank[step : step + 1] == "r" else None for rank in ranks] for step in range(steps)]
        done = [[None if one is None else one + 1 for one in row] for row in known]
        made = make_records(table, arrival=known, done=done)
        records = made.filter([step < len(ranks[rank]) for rank, step in made.select("rank", "step").iter_rows()])
        events = {
            rank: replace(make_log(rank), end=End(kind="end", steps=len(one), t_ns=1)) for rank, one in enumerate(ranks)
        }
        found = reducing_steps(AlignedRun(make_data(records, len(ranks), events=events)))
        return None if found is None else found.tolist()

    return count


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (("rrrr", "rrrr"), [4, 4]),
        (("r" * 80, "r" * 120), [80, 120]),  # uneven inputs under Join
        (("rr.rr.rr", ".r..r..r"), [8, 8]),  # layers that some ranks leave out
        (("...r...r...", "...r...r..."), [5, 5]),  # local SGD
        (("rrrr" + "....", "rrrr"), [4, 4]),  # a training of its own after the common one
        (("...." + "rrrr", "rrrr"), [4, 4]),  # and before it
        (("rr.r" * 30, "r.rr" * 20), [120, 80]),
        (("rrrr", "...."), [4, 4]),  # nothing is known of one rank
        (("....", "...."), [0, 0]),
    ],
)
def test_steps_without_a_recorded_reduction_are_steps(counts: Any, ranks: tuple[str, ...], expected: list[int]) -> None:
    assert counts(*ranks) == expected
