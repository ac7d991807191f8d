"""Collectives of all ranks find each other, and waiting in them is told from transfer as the text-book has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.analyse.collectives.matching import Matched, match
from allpull.rundir.read import collectives

MakeCalls = Callable[..., pl.DataFrame]
MakeAny = Callable[..., Any]
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def split_ms(matched: Matched) -> dict[int, tuple[float | None, float | None]]:
    """Wait and transfer of each rank in ms, summed; None where nothing was matched."""
    summed = matched.calls.group_by("rank").agg(
        (pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) / 1e6).alias(name)
        for name in ("wait_ns", "transfer_ns")
    )
    return {rank: (wait, transfer) for rank, wait, transfer in summed.sort("rank").rows()}


@pytest.fixture
def one(make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny) -> Callable[..., Matched]:
    """``one("all_reduce", starts, ends)``: one call on each rank, in ms, blocked all the while."""

    def make(op: str, starts: list[float], ends: list[float | None], **kind: Any) -> Matched:
        ranks = len(starts)
        rows = [
            (rank, 0, 0, 0, begin, None if end is None else end - begin, end)
            for rank, (begin, end) in enumerate(zip(starts, ends, strict=True))
        ]
        events = {rank: make_log(rank, collective_kinds=(make_kind(op, ranks, **kind),)) for rank in range(ranks)}
        return match(make_calls(rows), events, slack_ns=0)

    return make


def test_wait_at_n_by_n_ends_when_the_last_rank_arrives(one: Callable[..., Matched]) -> None:
    for op in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "all_to_all_single"):
        assert split_ms(one(op, [0, 30, 100], [120, 118, 119])) == {0: (100, 20), 1: (70, 18), 2: (0, 19)}, op


def test_in_a_broadcast_others_wait_for_the_root_and_the_root_for_nobody(one: Callable[..., Matched]) -> None:
    assert split_ms(one("broadcast", [50, 0, 20], [52, 60, 61], root=0)) == {0: (0, 2), 1: (50, 10), 2: (30, 11)}
    assert split_ms(one("scatter", [0, 10, 30], [5, 15, 35], root=0)) == {0: (0, 5), 1: (0, 5), 2: (0, 5)}


def test_in_a_reduction_to_one_rank_only_the_root_waits(one: Callable[..., Matched]) -> None:
    for op in ("reduce", "gather"):
        assert split_ms(one(op, [0, 10, 30], [40, 12, 32], root=0)) == {0: (30, 10), 1: (0, 2), 2: (0, 2)}, op


def test_a_root_that_the_library_makes_wait_for_a_late_receiver_waits(one: Callable[..., Matched]) -> None:
    # As Gloo was measured: its sender is blocked until the receiver is there, and so is who gets the data through it.
    assert split_ms(one("broadcast", [0, 100, 0], [101, 102, 1], root=0)) == {0: (100, 1), 1: (0, 2), 2: (0, 1)}


def test_only_the_part_that_a_rank_was_blocked_costs(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    # Rank 0 starts at 0 and computes until 60; rank 1 comes at 80. It is done at 100, and rank 1 never asks.
    calls = make_calls([(0, 0, 0, 0, 0, 40, 100), (1, 0, 0, 0, 80, None, None)])
    events = {rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 2),)) for rank in (0, 1)}
    assert split_ms(match(calls, events, slack_ns=0)) == {0: (20, 20), 1: (None, None)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"op": "all_gather"}, "another operation"),
        ({"size_bytes": 5}, "another size"),
        ({"dtype": "int64"}, "another type"),
        ({"group": "1"}, "another group"),
        ({"group_ranks": 3}, "a rank is missing"),
    ],
)
def test_what_is_not_alike_is_not_matched_and_counted(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny, change: dict[str, Any], why: str
) -> None:
    kinds = {0: make_kind("all_reduce", 2), 1: make_kind(**{"op": "all_reduce", "ranks": 2, **change})}
    events = {rank: make_log(rank, collective_kinds=(kind,)) for rank, kind in kinds.items()}
    matched = match(make_calls([(0, 0, 0, 0, 0, 5, 5), (1, 0, 0, 0, 1, 4, 5)]), events, slack_ns=0)
    assert matched.unmatched == 2, why
    assert split_ms(matched) == {0: (None, None), 1: (None, None)}
    assert matched.costs().is_empty()


def test_sizes_may_differ_where_the_root_holds_all_parts(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    calls = make_calls([(0, 0, 0, 0, 0, 5, 5), (1, 0, 0, 0, 1, 4, 5)])
    for op, matches in (("gather", True), ("all_to_all", True), ("all_reduce", False)):
        kinds = {0: make_kind(op, 2, size_bytes=800, root=0), 1: make_kind(op, 2, size_bytes=100, root=0)}
        events = {rank: make_log(rank, collective_kinds=(kind,)) for rank, kind in kinds.items()}
        assert (match(calls, events, slack_ns=0).unmatched == 0) == matches, op


def test_a_kind_that_was_never_told_and_one_told_again(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    calls = make_calls([(0, 0, 7, 0, 0, 5, 5), (1, 0, 7, 0, 1, 4, 5)])
    assert match(calls, {}, slack_ns=0).unmatched == 2
    older, newer = make_kind("barrier", 2, id=7), make_kind("all_reduce", 2, id=7)
    events = {0: make_log(0, collective_kinds=(older, newer)), 1: make_log(1, collective_kinds=(newer,))}
    matched = match(calls, events, slack_ns=0)
    assert matched.unmatched == 0
    assert set(matched.calls["use"]) == {matched.uses["op"].to_list().index("all_reduce")}


def test_numbers_that_went_astray_are_matched_by_step_and_place(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    """Rank 1 missed one call, so its numbers are one behind: equal numbers would pair calls of different steps."""
    rows: list[Any] = []
    for step in range(1, 4):
        at = 1000.0 * step
        rows += [(0, step, 0, step, at, 50, at + 50), (1, step, 0, step - 1, at + 40, 10, at + 50)]
    events = {rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 2),)) for rank in (0, 1)}
    matched = match(make_calls(rows), events, slack_ns=0)
    assert matched.unmatched == 0
    assert split_ms(matched) == {0: (120, 30), 1: (0, 30)}


def test_two_calls_of_one_number_on_a_rank_are_no_match(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    calls = make_calls([(0, 0, 0, 5, 0, 5, 5), (0, 1, 0, 5, 10, 5, 15)])
    matched = match(calls, {0: make_log(0, collective_kinds=(make_kind("all_reduce", 2),))}, slack_ns=0)
    assert matched.unmatched == 2


def test_calls_in_evaluation_keep_their_time_there(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    calls = make_calls([(0, 0, 0, 0, 0, 5, 5), (1, 0, 0, 0, 1, 4, 5)])
    for inside, costs in (("evaluation", 0), ("checkpoint", 0), ("forward", 2), (None, 2)):
        kind = make_kind("all_reduce", 2, inside=inside)
        matched = match(calls, {rank: make_log(rank, collective_kinds=(kind,)) for rank in (0, 1)}, slack_ns=0)
        assert matched.unmatched == 0
        assert matched.costs().height == costs, inside


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Calls of some ranks in some steps: who calls what when, and for how long it is blocked after the last came."""
    ranks, calls = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    ops = draw(
        st.lists(st.sampled_from(["all_reduce", "barrier", "broadcast", "gather"]), min_size=calls, max_size=calls)
    )
    late = [[draw(st.integers(0, 90)) for _ in range(ranks)] for _ in range(calls)]
    after = [[draw(st.integers(0, 40)) for _ in range(ranks)] for _ in range(calls)]
    waits = [[draw(st.booleans()) for _ in range(ranks)] for _ in range(calls)]
    return {"ranks": ranks, "ops": ops, "late": late, "after": after, "waits": waits}


def rows_of(job: dict[str, Any], order: list[int]) -> list[Any]:
    """All ranks are let go after the last arrival of an all-to-all operation, and of the root's in a rooted one."""
    rows = []
    for number, op in enumerate(job["ops"]):
        begins = [1000 * number + late for late in job["late"][number]]
        for rank in range(job["ranks"]):
            until = max(begins) if op in {"all_reduce", "barrier"} or rank == 0 else max(begins[0], begins[rank])
            end = max(until, begins[rank]) + job["after"][number][rank]
            kind = ["all_reduce", "barrier", "broadcast", "gather"].index(op)
            asked = job["waits"][number][rank]
            blocked = end - begins[rank] if asked else None
            rows.append((order[rank], number // 2, kind, number, begins[rank], blocked, end if asked else None))
    return rows


def events_of(job: dict[str, Any], make_kind: MakeAny, make_log: MakeAny, root: int = 0) -> dict[int, Any]:
    ops = ("all_reduce", "barrier", "broadcast", "gather")
    kinds = tuple(make_kind(op, job["ranks"], id=place, root=root) for place, op in enumerate(ops))
    return {rank: make_log(rank, collective_kinds=kinds) for rank in range(job["ranks"])}


@PROPERTY
@given(job=jobs())
def test_what_was_blocked_is_wait_and_transfer_and_nothing_else(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny, job: dict[str, Any]
) -> None:
    rows = rows_of(job, list(range(job["ranks"])))
    matched = match(make_calls(rows), events_of(job, make_kind, make_log), slack_ns=0)
    assert matched.unmatched == 0
    waited = matched.calls.drop_nulls("blocked_ns")
    assert (waited["wait_ns"] >= 0).all()
    assert (waited["transfer_ns"] >= 0).all()
    assert (waited["wait_ns"] + waited["transfer_ns"] == waited["blocked_ns"]).all()
    for row in waited.iter_rows(named=True):
        mates = [other for other in rows if other[3] == row["seq"]]
        assert row["wait_ns"] / 1e6 == waited_ms(job["ops"][row["seq"]], mates)[row["rank"]]


def waited_ms(op: str, rows: list[Any]) -> dict[int, float]:
    """An oracle that looks at one call alone: how long each blocked rank waited; rank 0 is the root."""
    begins, ends = ({row[0]: row[at] for row in rows if row[6] is not None} for at in (4, 6))
    last, root = max(row[4] for row in rows), rows[0][4]
    for_all = {rank: last - begins[rank] if ends[rank] >= last else 0 for rank in begins}
    if op == "gather" and any(ends[rank] < last for rank in begins if rank):
        return {rank: for_all[rank] if rank == 0 else 0 for rank in begins}
    for_root = {rank: max(0, root - begins[rank]) for rank in begins}
    is_better = sum(for_root.values()) > sum(for_all.values())  # more waiting is less transfer
    return for_root if op == "broadcast" and is_better else for_all


@PROPERTY
@given(job=jobs(), shift=st.integers(0, 10**18), seed=st.integers(0, 99))
def test_shifting_the_clock_and_relabelling_ranks_change_nothing(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny, job: dict[str, Any], shift: int, seed: int
) -> None:
    same = list(range(job["ranks"]))
    order = [int(rank) for rank in np.random.default_rng(seed).permutation(job["ranks"])]
    plain = split_ms(match(make_calls(rows_of(job, same)), events_of(job, make_kind, make_log), slack_ns=0))
    late = make_calls(rows_of(job, same), base_ns=10**12 + shift)
    assert split_ms(match(late, events_of(job, make_kind, make_log), slack_ns=0)) == plain
    mixed = match(make_calls(rows_of(job, order)), events_of(job, make_kind, make_log, root=order[0]), slack_ns=0)
    assert split_ms(mixed) == {order[rank]: parts for rank, parts in plain.items()}


def test_a_launch_that_returns_at_once_met_nobody(one: Callable[..., Matched]) -> None:
    """On an accelerator the host only queues the call: it has waited for nobody, and still belongs together."""
    matched = one("all_reduce", [0, 100], [0.02, 100.02])
    assert matched.unmatched == 0
    assert split_ms(matched)[0] == (0, pytest.approx(0.02))


def test_who_was_blocked_and_left_before_the_last_came_met_others(one: Callable[..., Matched]) -> None:
    assert one("all_reduce", [0, 100], [50, 130]).unmatched == 2
    assert one("broadcast", [100, 0], [130, 50], root=0).unmatched == 2
    assert one("gather", [0, 100], [50, 130], root=0).unmatched == 2


def test_clocks_that_differ_within_their_bound_do_not_tear_matches_apart(
    make_calls: MakeCalls, make_kind: MakeAny, make_log: MakeAny
) -> None:
    calls = make_calls([(0, 0, 0, 0, 0, 10, 10), (1, 0, 0, 0, 10.5, 1, 11.5)])  # rank 1's clock is 1 ms ahead
    events = {rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 2),)) for rank in (0, 1)}
    assert match(calls, events, slack_ns=0).unmatched == 2
    assert split_ms(match(calls, events, slack_ns=10**6)) == {0: (10, 0), 1: (0, 1)}


def test_nothing_recorded_is_nothing_matched() -> None:
    matched = match(pl.DataFrame(schema=collectives.SCHEMA), {}, slack_ns=0)
    assert (matched.calls.height, matched.unmatched, matched.costs().height) == (0, 0, 0)
