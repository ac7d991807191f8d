"""Planted offsets, drifts and delays come back within the bound, always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allpull.analyse.clock.host_clocks import MAX_DRIFT, Alignment, align
from allpull.analyse.probes.clock import compare
from allpull.rundir.read.counters import PINGS_SCHEMA

S = 10**9
Clock = Callable[[int], int]
"""What a host's clock shows, in ns, at a true time in ns; the reference's shows the true time."""


def steady(offset_ns: int, drift_ppb: int) -> Clock:
    return lambda true_ns: offset_ns + true_ns + true_ns * drift_ppb // S


def row(clock: Clock, sent_ns: int, there_ns: int, answering_ns: int, back_ns: int) -> list[int]:
    """One ping at a true time, with its two ways and the time in between."""
    moments = np.cumsum([sent_ns, there_ns, answering_ns, back_ns]).tolist()
    own, reference = (clock(moments[0]), clock(moments[3])), (moments[1], moments[2])
    return [own[0], *reference, own[1]]


def table(rows: Sequence[Sequence[int]], host: str = "b", against: str = "a") -> pl.DataFrame:
    """Pings whose monotonic and real-time clocks show the same."""
    return pl.DataFrame([(host, against, *one, *one) for one in rows], schema=PINGS_SCHEMA, orient="row")


def wrong_by_s(alignment: Alignment, clock: Clock, true_ns: int) -> float:
    """How far the reference's time of what ``b`` stamped at ``true_ns`` is from the truth."""
    return abs(int(alignment.aligned_ns("b", clock(true_ns))) - true_ns) / S


DELAYS = st.tuples(*[st.integers(0, 20_000_000)] * 3)
BURSTS = st.lists(st.tuples(st.integers(0, 600 * S), st.lists(DELAYS, min_size=1, max_size=5)), min_size=1, max_size=6)


@given(
    st.integers(-(10**17), 10**17),
    st.integers(round(-0.9 * MAX_DRIFT * S), round(0.9 * MAX_DRIFT * S)),
    BURSTS,
    st.lists(st.integers(-100 * S, 700 * S), min_size=1, max_size=5),
)
@example(5 * S, 100_000, [(0, [(0, 0, 20_000_000)]), (60 * S, [(20_000_000, 0, 0)])], [0, 30 * S, 90 * S])
def test_a_planted_offset_and_drift_come_back_within_the_bound(offset_ns, drift_ppb, bursts, moments):
    """Whatever the two ways of a ping took, between bursts and beyond them."""
    clock = steady(offset_ns, drift_ppb)
    rows = [row(clock, at + number * 10**7, *delays) for at, pings in bursts for number, delays in enumerate(pings)]
    alignment = align(table(rows), ["a", "b"])
    for true_ns in (*moments, *(at for at, _ in bursts)):
        assert wrong_by_s(alignment, clock, true_ns) <= alignment.bound_s("b", clock(true_ns)) + 2e-9


CHANGES = st.integers(20_000, 400_000)


@given(st.integers(-400_000, 0), CHANGES, st.booleans(), st.integers(121 * S, 479 * S), st.integers(0, 600 * S))
def test_a_rate_that_changes_once_stays_within_the_bound(before_ppb, by_ppb, falls, change_ns, at_ns):
    """As when NTP sets another rate: pings before and after tell."""
    before_ppb, after_ppb = (before_ppb, before_ppb + by_ppb)[:: -1 if falls else 1]

    def clock(true_ns: int) -> int:
        early, late = min(true_ns, change_ns), max(0, true_ns - change_ns)
        return true_ns + (early * before_ppb + late * after_ppb) // S

    rows = [row(clock, at, 100_000, 0, 0) for at in range(0, 601 * S, 60 * S)]
    alignment = align(table(rows), ["a", "b"])
    assert wrong_by_s(alignment, clock, at_ns) <= alignment.bound_s("b", clock(at_ns)) + 2e-9


def test_interpolation_takes_drift_out_that_one_offset_would_leave():
    """20 ppm for a minute are 1.2 ms; pings of 100 µs leave 50 µs of it and what a quartz wanders."""
    clock = steady(5 * S, 20_000)
    alignment = align(table([row(clock, at, 60_000, 5_000, 40_000) for at in (0, 60 * S)]), ["a", "b"])
    middle = clock(30 * S)
    assert wrong_by_s(alignment, clock, 30 * S) == pytest.approx(10e-6, abs=1e-7)  # half of 60 − 40 µs
    assert alignment.bound_s("b", middle) == pytest.approx(50e-6 + 30e-6 + 50e-9, abs=1e-7)
    assert alignment.bound_s("b", clock(0)) == pytest.approx(50e-6 + 50e-9, abs=1e-7)


def test_the_fastest_ping_of_a_burst_speaks_for_it():
    clock = steady(-(3 * S), 0)
    slow, fast = row(clock, 0, 9_000_000, 0, 0), row(clock, 10**7, 20_000, 0, 20_000)
    alignment = align(table([slow, fast, row(clock, 2 * 10**7, 0, 0, 9_000_000)]), ["a", "b"])
    assert int(alignment.offset_ns("b", clock(10**7))) == -3 * S
    assert alignment.bound_s("b", clock(10**7)) == pytest.approx(20e-6, abs=1e-7)


def test_one_burst_bounds_less_the_farther_away_it_is():
    clock = steady(S, 0)
    alignment = align(table([row(clock, 0, 10_000, 0, 10_000)]), ["a", "b"])
    bounds = alignment.bound_s("b", [clock(at * S) for at in (0, 1, 100)])
    assert bounds == pytest.approx([10e-6, 10e-6 + MAX_DRIFT, 10e-6 + 100 * MAX_DRIFT], rel=1e-2)


def test_it_agrees_with_the_clock_probe():
    """Whose estimator is another one: the last burst's, with every pair of bursts bounding the drift."""
    clock = steady(7 * S, -50_000)
    ways = [(30_000, 70_000), *[(90_000, 70_000)] * 99]
    rows = [
        row(clock, at * S + n * 10**6, there, 2_000, back)
        for at in (0, 60, 120)
        for n, (there, back) in enumerate(ways)
    ]
    probe, alignment = compare(rows), align(table(rows), ["a", "b"])
    assert -probe.offset_s == pytest.approx(float(alignment.offset_ns("b", rows[-100][0])) / S, abs=1e-8)
    assert probe.drift is not None
    after, before = (int(alignment.offset_ns("b", rows[0][0] + at)) for at in (60 * S, 0))
    assert (before - after) / (60 * S) == pytest.approx(probe.drift, abs=1e-8)


@given(st.permutations(range(6)), st.integers(-(10**12), 10**12))
def test_order_changes_nothing_and_a_shift_of_all_clocks_shifts_times_alone(order, shift_ns):
    clock = steady(5 * S, 30_000)
    rows = [row(clock, at * 20 * S, 10_000 * (1 + at), 0, 40_000) for at in range(6)]
    moments = np.arange(-20 * S, 140 * S, 7 * S)
    plain = align(table(rows), ["a", "b"])
    mixed = align(table([rows[index] for index in order]), ["a", "b"])
    shifted = align(table([[moment + shift_ns for moment in one] for one in rows]), ["a", "b"])
    for other, times in ((mixed, moments), (shifted, moments + shift_ns)):
        assert (other.offset_ns("b", times) == plain.offset_ns("b", moments)).all()
        assert (other.bound_s("b", times) == plain.bound_s("b", moments)).all()


def test_the_reference_is_whom_the_others_pinged_and_who_pinged_nobody_is_named():
    clock = steady(S, 0)
    rows = [row(clock, at * S, 10_000, 0, 10_000) for at in (0, 60)]
    pings = pl.concat([table(rows, host, "c") for host in ("b", "d")])
    alignment = align(pings, ["a", "b", "c", "d"])
    assert (alignment.reference, alignment.unpinged) == ("c", ("a",))
    assert [host in alignment for host in ("a", "b", "c", "d")] == [False, True, True, True]
    assert alignment.aligned_ns("c", [1, 2]).tolist() == [1, 2]
    assert alignment.bound_s("c", [1, 2]).tolist() == [0, 0]
    with pytest.raises(KeyError):
        alignment.offset_ns("a", 0)


def test_a_host_alone_is_its_own_reference_and_two_without_pings_are_apart():
    nothing = pl.DataFrame(schema=PINGS_SCHEMA)
    assert "a" in align(nothing, ["a"])
    apart = align(nothing, ["a", "b"])
    assert (apart.reference, apart.unpinged) == (None, ("a", "b"))


def test_each_clock_is_aligned_by_itself():
    """A wall clock that is wrong by seconds, beside monotonic clocks that two hosts on one machine share."""
    right, wrong = (row(steady(offset, 0), 0, 10_000, 0, 10_000) for offset in (0, 5 * S))
    pings = pl.DataFrame([("b", "a", *right, *wrong)], schema=PINGS_SCHEMA, orient="row")
    assert int(align(pings, ["a", "b"]).offset_ns("b", right[0])) == 0
    assert int(align(pings, ["a", "b"], clock="realtime").offset_ns("b", wrong[0])) == 5 * S


def test_pings_during_which_a_clock_was_set_are_left_out():
    clock = steady(0, 0)
    good = [row(clock, at * S, 50_000, 0, 50_000) for at in (0, 60)]
    set_back = [[10 * S, 10 * S + 50_000, 10 * S + 50_000, 9 * S], [20 * S, 20 * S, 23 * S, 20 * S + 100_000]]
    alignment = align(table([*good, *set_back]), ["a", "b"])
    assert alignment.clocks["b"].at_ns.size == 2
    assert align(table(set_back), ["a", "b"]).unpinged == ("b",)


WILD = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(WILD, WILD, WILD, WILD), max_size=6), st.lists(WILD, min_size=1, max_size=4))
def test_moments_that_no_clock_shows_break_nothing(rows, times):
    alignment = align(table(rows), ["a", "b"])
    if "b" in alignment:
        assert alignment.offset_ns("b", times).shape == alignment.bound_s("b", times).shape == (len(times),)


@given(st.lists(st.integers(10_000, 10**7), min_size=2, max_size=8))
def test_time_goes_on_where_a_host_goes_on(trips):
    """Offsets do not turn the order of a host's moments around; rates of clocks are near 1."""
    clock = steady(S, 40_000)
    alignment = align(table([row(clock, at * 60 * S, trip, 0, 10_000) for at, trip in enumerate(trips)]), ["a", "b"])
    times = np.arange(0, len(trips) * 60 * S, S // 2)
    assert all(early < late for early, late in pairwise(alignment.aligned_ns("b", times).tolist()))
