"""The one rule: who waits for whom in a collective, and how the time that a rank is blocked splits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.analyse.collectives.waiting import (
    ALL,
    FROM_ROOT,
    ROUNDING_S,
    TO_ROOT,
    Calls,
    Met,
    direction,
    met,
    reductions,
    wait_and_transfer,
)

MOMENT = st.floats(0, 1e3)


def call(arrive: list[float], end: list[float], *, kind: int, root: int | None = None) -> Calls:
    """One call, in which each rank is blocked from its arrival to its end."""
    ranks = len(arrive)
    return Calls(
        call=np.zeros(ranks, dtype=np.intp),
        arrive=np.array(arrive),
        begin=np.array(arrive),
        end=np.array(end),
        blocks=np.ones(ranks, dtype=np.bool_),
        is_root=np.arange(ranks) == root,
        direction=np.full(ranks, kind, dtype=np.int8),
    )


def who_met(*calls: Calls) -> Met:
    """The rule on several calls at once."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in calls]) for name in Calls.__slots__ if name != "call"
    }
    numbers = np.repeat(np.arange(len(calls)), [one.call.size for one in calls])
    return met(Calls(call=numbers, **columns), slack=0.0, rounding=ROUNDING_S)


@given(st.lists(st.tuples(MOMENT, MOMENT), min_size=1, max_size=5), MOMENT)
def test_waiting_and_transfer_are_the_whole_of_what_a_rank_was_blocked(
    spans: list[tuple[float, float]], last: float
) -> None:
    begin, end = np.array([min(span) for span in spans]), np.array([max(span) for span in spans])
    wait, transfer = wait_and_transfer(begin, end, np.array(last))
    assert (wait >= 0).all()
    assert (transfer >= 0).all()
    assert wait + transfer == pytest.approx(end - begin)
    assert (wait[end <= last] == (end - begin)[end <= last]).all()
    assert (wait[begin >= last] == 0).all()


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        *(
            (op, ALL)
            for op in ("all_reduce", "all_gather_into_tensor", "barrier", "reduce_scatter_tensor", "all_to_all")
        ),
        *((op, FROM_ROOT) for op in ("broadcast", "broadcast_object", "scatter")),
        *((op, TO_ROOT) for op in ("reduce", "gather")),
    ],
)
def test_the_beginning_of_its_name_says_who_waits_in_an_operation(op: str, kind: int) -> None:
    assert pl.select(direction(pl.lit(op))).item() == kind


def test_in_an_all_reduce_all_wait_for_the_last() -> None:
    found = who_met(call([0, 30, 100], [120, 118, 119], kind=ALL))
    assert found.waits.all()
    assert found.meets.all()
    assert found.last.tolist() == [100, 100, 100]


def test_in_a_broadcast_ranks_wait_for_the_root_alone_where_that_leaves_less_to_transfer() -> None:
    found = who_met(call([50, 0, 70], [52, 60, 80], kind=FROM_ROOT, root=0))
    assert found.meets.tolist() == [True, False, False]
    assert found.waits.tolist() == [True, True, False]
    assert found.last.tolist() == [50, 50, 50]


def test_a_broadcast_that_holds_its_root_until_the_last_receiver_came_is_waiting_of_all() -> None:
    """Gloo blocks a sender until its receivers arrive."""
    found = who_met(call([0, 100], [101, 102], kind=FROM_ROOT, root=0))
    assert found.waits.all()
    assert found.last.tolist() == [100, 100]


@pytest.mark.parametrize(("left", "wait"), [(1, [True, False, False]), (101, [True, True, True])])
def test_in_a_gather_only_the_root_waits_if_any_rank_left_early(left: float, wait: list[bool]) -> None:
    found = who_met(call([0, 0, 100], [102, left, 101], kind=TO_ROOT, root=0))
    assert found.waits.tolist() == wait


@given(
    st.lists(st.lists(MOMENT, min_size=2, max_size=2), min_size=1, max_size=4),
    st.sampled_from([ALL, FROM_ROOT, TO_ROOT]),
)
def test_calls_do_not_change_each_other(arrivals: list[list[float]], kind: int) -> None:
    calls = [call(arrive, [max(arrive) + 1] * 2, kind=kind, root=0) for arrive in arrivals]
    joint, alone = who_met(*calls), [who_met(one) for one in calls]
    for name in Met.__slots__:
        assert getattr(joint, name).tolist() == [value for one in alone for value in getattr(one, name).tolist()]


def test_no_calls_are_no_waiting() -> None:
    assert met(call([], [], kind=ALL), slack=0.0, rounding=ROUNDING_S).waits.size == 0


def test_a_reduction_of_gradients_is_split_only_where_all_ranks_arrivals_are_known() -> None:
    every = pl.DataFrame(
        [(0, 0, 0, "0", 10, 50), (1, 0, 0, "0", 40, 52), (0, 1, 0, "0", 10, 20)],
        schema={**dict.fromkeys(("rank", "step", "reduction"), pl.Int64()), "networks": pl.String(),
                **dict.fromkeys(("arrival_ns", "done_ns"), pl.Int64())},
        orient="row",
    )  # fmt: skip
    split = reductions(every, 2)
    assert split["reduced_ns"].to_list() == [40, 12, 10]
    assert split["wait_ns"].to_list() == [30, 0, None]
    assert split["transfer_ns"].to_list() == [10, 12, None]


def test_what_is_not_known_stays_so() -> None:
    wait, transfer = wait_and_transfer(np.array([0.0]), np.array([2.0]), np.array(math.nan))
    assert np.isnan(wait).all()
    assert np.isnan(transfer).all()
