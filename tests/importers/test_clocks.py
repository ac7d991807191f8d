"""Clocks from collectives: the true offset lies within the bounds, whatever the delays, and these are not too wide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.analyse.clock.shared_clock import compared_after, shared_clock
from allpull.importers.clocks import MAX_DRIFT, Clocks, Key, Look, estimate
from allpull.importers.kineto.calls import Call, Use
from allpull.rundir.read.counters import PINGS_SCHEMA
from allpull.schema.base import tag
from allpull.schema.steps import StepsHeader

MS, S = 1_000_000, 1_000_000_000
BASE_NS = 1_790_000_000 * S
ALL = Use(family="all_reduce", size_bytes=4, dtype=None, group="0", group_ranks=2)

Stamp = Callable[[float], int]


def clock(offset_ns: float, drift: float) -> Stamp:
    """What a clock shows at a true time in ns; Python's whole numbers, because it counts from 1970."""
    return lambda t_ns: BASE_NS + round(offset_ns) + round(t_ns * (1 + drift))


def call(begin_ns: int, end_ns: int, use: Use = ALL) -> Call:
    return Call(
        use=use, seq=None, called_ns=begin_ns, arrived_ns=begin_ns, ready_ns=begin_ns, ran_ns=(begin_ns, end_ns)
    )


def meetings(
    stamps: dict[int, Stamp], arrivals_ns: np.ndarray, lasts_ns: np.ndarray, leaves_ns: np.ndarray
) -> dict[int, dict[Key, Call]]:
    """Collectives of all ranks, shape (collectives, ranks): over ``lasts`` after the last arrival, then left."""
    found: dict[int, dict[Key, Call]] = {rank: {} for rank in stamps}
    for place, (arrival, lasts, leave) in enumerate(zip(arrivals_ns, lasts_ns, leaves_ns, strict=True)):
        over = arrival.max() + lasts
        for column, rank in enumerate(stamps):
            found[rank][(place,)] = call(stamps[rank](arrival[column]), stamps[rank](over + leave[column]))
    return found


def random_meetings(seed: int, count: int, stamps: dict[int, Stamp], span_s: float) -> dict[int, dict[Key, Call]]:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, span_s * S, count))
    arrivals = at[:, None] + rng.exponential(5 * MS, (count, len(stamps)))
    return meetings(stamps, arrivals, rng.exponential(MS, count), rng.exponential(0.05 * MS, (count, len(stamps))))


def at_looks(looks: tuple[Look, ...], offset_ns: float, drift: float) -> list[tuple[float, int]]:
    """Error and bound at each look, in ns, of a host that is ahead of true time by ``offset_ns`` and drifts."""
    found = []
    for look in looks:
        true_ns = (look.at_ns - BASE_NS - offset_ns) / (1 + drift)
        found.append((look.offset_ns - (look.at_ns - BASE_NS - true_ns), look.bound_ns))
    return found


@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.floats(-1e15, 1e15),
    st.floats(-100e-6, 100e-6),
    st.floats(0.01, 20),
)
def test_the_true_offset_is_within_the_bounds(
    seed: int, count: int, offset: float, drift: float, span_s: float
) -> None:
    stamps = {0: clock(0, 0), 1: clock(offset, drift)}
    found = estimate(random_meetings(seed, count, stamps, span_s), {0: "a", 1: "b"})
    assert found.reference == "a"
    assert not found.contradictions
    for error_ns, bound_ns in at_looks(found.looks["b"], round(offset), drift):
        assert abs(error_ns) <= bound_ns + 10  # stamps are whole ns


def test_the_bound_is_what_the_fastest_meetings_leave() -> None:
    """With one all-reduce in which each is last, of transfer τ, it can be no smaller than τ, and it is no larger."""
    arrivals = np.array([[0.0, 5 * MS], [15 * MS, 10 * MS]])
    lasts, leaves = np.array([0.2 * MS, 0.2 * MS]), np.zeros((2, 2))
    found = estimate(meetings({0: clock(0, 0), 1: clock(7 * S, 0)}, arrivals, lasts, leaves), {0: "a", 1: "b"})
    for look in found.looks["b"]:
        assert look.offset_ns == pytest.approx(7 * S, abs=0.02 * MS)
        assert 0.2 * MS <= look.bound_ns <= 0.2 * MS + 2 * MAX_DRIFT * 20 * MS + 10


def test_of_one_rank_that_is_always_last_the_other_side_is_wide() -> None:
    arrivals = np.array([[step * 100.0 * MS, step * 100.0 * MS + 40 * MS] for step in range(10)])
    steps = len(arrivals)
    found = estimate(
        meetings({0: clock(0, 0), 1: clock(0, 0)}, arrivals, np.full(steps, MS), np.zeros((steps, 2))), {0: "a", 1: "b"}
    )
    assert max(look.bound_ns for look in found.looks["b"]) > 30 * MS  # nobody knows when the first had come
    assert all(abs(look.offset_ns) < 0.1 * MS for look in found.looks["b"])  # but both left together


def test_hosts_that_met_only_through_another_are_known_through_it() -> None:
    stamps = {0: clock(0, 0), 1: clock(3 * S, 0), 2: clock(-5 * S, 0)}
    first = random_meetings(1, 30, {0: stamps[0], 1: stamps[1]}, 1.0)
    second = random_meetings(2, 30, {1: stamps[1], 2: stamps[2]}, 1.0)
    both = {0: first[0], 1: first[1] | {(*key, "x"): its for key, its in second[1].items()}}
    both[2] = {(*key, "x"): its for key, its in second[2].items()}
    found = estimate(both, {0: "a", 1: "b", 2: "c"})
    assert found.reference == "b"
    assert abs(found.looks["a"][0].offset_ns + 3 * S) <= found.looks["a"][0].bound_ns
    assert abs(found.looks["c"][0].offset_ns + 8 * S) <= found.looks["c"][0].bound_ns


def test_a_chain_adds_up_offsets_and_bounds() -> None:
    stamps = {rank: clock(rank * S, 0) for rank in range(4)}
    calls: dict[int, dict[Key, Call]] = {rank: {} for rank in stamps}
    for rank in range(3):
        pair = random_meetings(rank, 20 + (rank == 0), {rank: stamps[rank], rank + 1: stamps[rank + 1]}, 1.0)
        for member, its in pair.items():
            calls[member] |= {(*key, rank): one for key, one in its.items()}
    found = estimate(calls, {rank: f"h{rank}" for rank in stamps})
    for rank in stamps:
        host = f"h{rank}"
        if host != found.reference:
            ahead_ns = (rank - int(found.reference[1:])) * S
            for look in found.looks[host]:
                assert abs(look.offset_ns - ahead_ns) <= look.bound_ns
    bounds = {host: its[0].bound_ns for host, its in found.looks.items()}
    assert bounds["h3"] > bounds["h2"]


def test_what_is_not_of_all_to_all_tells_nothing() -> None:
    use = Use(family="broadcast", size_bytes=4, dtype=None, group="0", group_ranks=2)
    calls = {rank: {(1,): call(BASE_NS, BASE_NS + MS, use)} for rank in range(2)}
    found = estimate(calls, {0: "a", 1: "b"})
    assert found.unknown == ("b",)
    assert not found.looks


def test_a_clock_that_jumps_is_said_to_and_widens_the_bound() -> None:
    stamps = {0: clock(0, 0), 1: clock(0, 0)}
    calls = random_meetings(3, 40, stamps, 1.0)
    jumped = {
        key: call(one.called_ns + (50 * MS if place >= 20 else 0), one.ran_ns[1] + (50 * MS if place >= 20 else 0))
        for place, (key, one) in enumerate(calls[1].items())
        if one.ran_ns
    }
    found = estimate({0: calls[0], 1: jumped}, {0: "a", 1: "b"})
    assert found.contradictions["b"] > 5 * MS
    for look, true_ns in zip(found.looks["b"], (0, 50 * MS), strict=True):
        assert abs(look.offset_ns - true_ns) <= look.bound_ns


def test_devices_of_one_host_that_contradict_each_other_widen_it_too() -> None:
    stamps = {0: clock(0, 0), 1: clock(0, 0), 2: clock(4 * MS, 0)}
    calls = random_meetings(4, 40, stamps, 1.0)
    together = estimate(calls, {0: "a", 1: "b", 2: "b"})
    apart = estimate({rank: calls[rank] for rank in (0, 1)}, {0: "a", 1: "b"})
    assert together.contradictions["b"] > 2 * MS
    assert together.looks["b"][0].bound_ns >= apart.looks["b"][0].bound_ns


def test_recordings_far_apart_have_lines_of_their_own() -> None:
    stamps = {0: clock(0, 0), 1: clock(0, 2e-6)}
    early = random_meetings(5, 30, stamps, 1.0)
    late = random_meetings(6, 30, {0: lambda t: stamps[0](t + 3600 * S), 1: lambda t: stamps[1](t + 3600 * S)}, 1.0)
    calls = {rank: early[rank] | {(*key, "late"): one for key, one in late[rank].items()} for rank in stamps}
    found = estimate(calls, {0: "a", 1: "b"})
    looks = found.looks["b"]
    assert len(looks) == 4
    assert looks[-1].offset_ns - looks[0].offset_ns == pytest.approx(
        7.2 * MS, abs=looks[0].bound_ns + looks[-1].bound_ns
    )


@given(st.integers(0, 2**32), st.permutations(range(3)))
@settings(max_examples=25)  # there are six orders
def test_the_order_of_ranks_changes_nothing(seed: int, order: list[int]) -> None:
    stamps = {0: clock(0, 0), 1: clock(S, 1e-6), 2: clock(-S, -1e-6)}
    calls = random_meetings(seed, 25, stamps, 1.0)
    hosts = {0: "a", 1: "b", 2: "c"}
    usual = estimate(calls, hosts)
    found = estimate({rank: calls[rank] for rank in order}, {rank: hosts[rank] for rank in sorted(order)})
    assert found == usual


def header(rank: int, host: str, found: Clocks | None) -> StepsHeader:
    compared = None
    if found is not None:
        looks = [[look.at_ns, look.offset_ns, look.bound_ns] for look in found.looks.get(host, ())]
        compared = {"against": found.reference, "looks": looks}
    return StepsHeader.model_validate(
        {
            "schema": tag("steps"),
            "rank": rank,
            "local_rank": 0,
            "ranks": 2,
            "host": host,
            "pid": 1,
            "clock": {"monotonic_ns": BASE_NS, "realtime_ns": BASE_NS},
            "boundary": "ProfilerStep",
            "budget": 1 << 20,
            "compared": compared,
        }
    )


def test_the_analysis_puts_moments_on_one_clock_with_these_bounds() -> None:
    stamps = {0: clock(0, 0), 1: clock(9 * S, 20e-6)}
    found = estimate(random_meetings(7, 50, stamps, 5.0), {0: "a", 1: "b"})
    headers = {0: header(0, "a", found), 1: header(1, "b", found)}
    steps = pl.DataFrame({"rank": [0, 1], "begin_ns": [stamps[0](2 * S), stamps[1](2 * S)]})
    shared = shared_clock(headers, pl.DataFrame(schema=PINGS_SCHEMA), steps)
    assert shared.bound_s is not None
    assert shared.bound_s * S >= min(look.bound_ns for look in found.looks["b"])
    moments = shared.shared(steps, ("begin_ns",))["begin_ns"].to_list()
    assert abs(moments[1] - moments[0]) <= shared.bound_s * S


def test_a_host_that_was_not_compared_leaves_moments_incomparable() -> None:
    found = estimate(random_meetings(8, 20, {0: clock(0, 0), 1: clock(S, 0)}, 1.0), {0: "a", 1: "b"})
    headers = {0: header(0, "a", found), 1: header(1, "b", found), 2: header(2, "c", None)}
    steps = pl.DataFrame({"rank": [0, 1, 2], "begin_ns": [BASE_NS] * 3})
    assert shared_clock(headers, pl.DataFrame(schema=PINGS_SCHEMA), steps).bound_s is None


@pytest.mark.parametrize(
    "looks", [[[5, 0, 1], [4, 0, 1]], [[5, 0, -1]], [[2**62 + 1, 0, 1]], [], [[5, 0, 1], [5, 0, 1]]]
)
def test_looks_that_no_clock_can_have_been_align_nothing(looks: list[list[int]]) -> None:
    good = header(0, "a", None).model_copy(update={"compared": None})
    told = header(1, "b", Clocks(reference="a", looks={}, meetings=1, unknown=(), contradictions={}))
    assert told.compared is not None
    odd = told.model_copy(update={"compared": told.compared.model_copy(update={"looks": looks})})
    alignment = compared_after([good, odd])
    assert alignment is not None
    assert "b" not in alignment
