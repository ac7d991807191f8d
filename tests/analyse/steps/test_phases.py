"""Phases are disjoint and close; waiting is told from transfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.analyse.steps.grid import arrange
from allpull.analyse.steps.phases import NAMES, Phases, share_a_clock, split
from allpull.schema.base import tag
from allpull.schema.gap import texts
from allpull.schema.steps import StepsHeader

MakeRecords = Callable[..., pl.DataFrame]


def phases_of(records: pl.DataFrame, ranks: int, *, one_clock: bool = True) -> Phases:
    steps = np.unique(records["step"].to_numpy())
    return split(arrange(records, steps, ranks), one_clock=one_clock)


def per_rank_ms(phases: Phases, name: str) -> list[float]:
    times = phases.seconds[name]
    assert times is not None, name
    return [pytest.approx(1000 * mean, abs=1e-9) for mean in times.mean(axis=0)]


def test_a_rank_100_ms_late_in_backward_shows_as_waiting_on_the_other_alone(make_records: MakeRecords) -> None:
    # Both begin together and are done at 210 ms. Rank 0 arrives at 90, rank 1 at 190; transfer takes 20.
    phases = phases_of(
        make_records(
            [[220, 220]] * 3,
            input=[[10, 10]] * 3,
            forward=[[30, 30]] * 3,
            backward=[[170, 170]] * 3,
            optimizer=[[8, 8]] * 3,
            arrival=[[90, 190]] * 3,
            done=[[210, 210]] * 3,
        ),
        2,
    )
    assert per_rank_ms(phases, "wait") == [100, 0]
    assert per_rank_ms(phases, "transfer") == [20, 20]
    assert per_rank_ms(phases, "backward") == [50, 150]  # 170 recorded, of which 120 and 20 blocked
    assert per_rank_ms(phases, "other") == [2, 2]
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
    assert (phases.violations, phases.gaps) == (0, ())
    assert phases.means_s()["wait"] == pytest.approx(0.05)
    assert phases.means_s()["host"] is None
    assert phases.means_s()["copy"] is None


def test_a_slow_network_shows_as_transfer_on_all(make_records: MakeRecords) -> None:
    phases = phases_of(
        make_records([[300, 300]], backward=[[250, 250]], arrival=[[90, 91]], done=[[291, 291]]), ranks=2
    )
    assert per_rank_ms(phases, "wait") == [1, 0]
    assert per_rank_ms(phases, "transfer") == [200, 200]


def test_lateness_from_before_the_step_counts_on_the_shared_clock(make_records: MakeRecords) -> None:
    # Rank 1 begins its step 40 ms late, then does the same work.
    phases = phases_of(
        make_records([[140, 100]], begin=[[0, 40]], backward=[[100, 60]], arrival=[[60, 60]], done=[[120, 80]]), 2
    )
    assert per_rank_ms(phases, "wait") == [40, 0]
    assert per_rank_ms(phases, "transfer") == [20, 20]


def test_one_rank_without_collectives_waits_truly_zero(make_records: MakeRecords) -> None:
    means = phases_of(make_records([[100]] * 4, forward=[[30]] * 4, backward=[[60]] * 4), ranks=1).means_s()
    assert (means["wait"], means["transfer"]) == (0.0, 0.0)
    assert means["backward"] == pytest.approx(0.06)


def test_several_ranks_without_arrivals_are_not_measured_and_not_zero(make_records: MakeRecords) -> None:
    phases = phases_of(make_records([[100, 100]] * 4, forward=[[30, 30]] * 4, backward=[[60, 60]] * 4), ranks=2)
    means = phases.means_s()
    assert (means["wait"], means["transfer"]) == (None, None)
    assert means["backward"] == pytest.approx(0.06)
    assert texts(phases.gaps) == [
        "arrivals at collectives were not recorded: wait and transfer are not measured, and 'backward' holds them",
    ]


def test_clocks_that_do_not_compare_leave_the_split_unknown_and_the_sum_whole(make_records: MakeRecords) -> None:
    records = make_records([[220, 220]], backward=[[170, 170]], arrival=[[90, 190]], done=[[210, 210]])
    phases = phases_of(records, 2, one_clock=False)
    assert (phases.seconds["wait"], phases.seconds["transfer"]) == (None, None)
    assert per_rank_ms(phases, "backward") == [50, 150]  # its own clock tells each rank how long it was blocked
    assert per_rank_ms(phases, "other") == [170, 70]
    reason = "the clocks of the hosts are not aligned"
    lost = "'other' holds the 70 ms per step that ranks were blocked"
    assert texts(phases.gaps) == [f"wait and transfer are not separated: {reason}; {lost}"]


def test_a_phase_measured_in_some_steps_keeps_the_sum_and_says_so(make_records: MakeRecords) -> None:
    phases = phases_of(make_records([[100, 100]] * 2, forward=[[40, 40], [40, None]]), ranks=2)
    assert phases.means_s()["forward"] == pytest.approx(0.03)
    assert per_rank_ms(phases, "other") == [60, 80]
    assert phases.gaps[0].text == "forward was not measured in 1 of 4 rank-steps: their time is in 'other'"


def test_one_missing_arrival_hides_the_last_arrival_of_its_step_only(make_records: MakeRecords) -> None:
    phases = phases_of(
        make_records(
            [[100, 100]] * 2,
            backward=[[80, 80]] * 2,
            arrival=[[50, 60], [50, None]],
            done=[[80, 80], [80, None]],
        ),
        ranks=2,
    )
    assert phases.seconds["wait"] is not None
    assert phases.seconds["wait"][:, 0].tolist() == [pytest.approx(0.01), 0.0]
    assert "not recorded in 1 of 4 rank-steps" in phases.gaps[0].text


def test_overlapping_records_are_the_closure_error(make_records: MakeRecords) -> None:
    # Rank 1 claims 110 ms of phases in 100 ms of one step of two; slack in its other step does not hide it.
    phases = phases_of(make_records([[100, 100]] * 2, forward=[[60, 110], [60, 60]]), ranks=2)
    assert phases.closure_error == pytest.approx(10 / 200)
    assert phases.seconds["other"] is not None
    assert (phases.seconds["other"] >= 0).all()


def test_times_that_contradict_each_other_are_cut_and_counted(make_records: MakeRecords) -> None:
    phases = phases_of(
        make_records(
            [[100, 100]] * 3,
            backward=[[60, 60], [60, 60], [5, 60]],
            arrival=[[50, 50], [50, 95], [50, 50]],
            done=[[40, 60], [60, 98], [60, 60]],  # back before ready; back before the last arrived; 10 in 5
        ),
        ranks=2,
    )
    assert phases.violations == 3
    assert phases.seconds["wait"] is not None
    assert phases.seconds["wait"][:, 0].tolist() == pytest.approx([0, 0.010, 0])  # never longer than it was blocked
    assert "contradict each other in 3 of 6 rank-steps" in phases.gaps[-1].text
    assert all((times >= 0).all() for times in phases.seconds.values() if times is not None)


def test_no_steps_no_phases(make_records: MakeRecords) -> None:
    phases = split(arrange(make_records([[1, 1]]), np.array([], dtype=np.int64), 2), one_clock=True)
    assert phases.means_s() == dict.fromkeys(NAMES)
    assert phases.closure_error is None


@pytest.mark.parametrize(
    ("clocks", "shared"),
    [
        ([("a", "x"), ("b", "x")], True),  # two containers of one boot
        ([("a", "x"), ("a", "y")], False),  # one name, two machines
        ([("a", None), ("a", None)], True),
        ([("a", None), ("b", None)], False),
        ([("a", "x"), ("a", None)], False),
        ([], True),
    ],
)
def test_one_boot_is_one_clock(clocks: list[tuple[str, str | None]], shared: bool) -> None:
    moment = {"monotonic_ns": 0, "realtime_ns": 0}
    common = {"schema": tag("steps"), "rank": 0, "local_rank": 0, "ranks": 2, "pid": 1, "clock": moment}
    headers = [
        StepsHeader.model_validate({**common, "host": host, "boot_id": boot, "boundary": "", "budget": 1})
        for host, boot in clocks
    ]
    assert share_a_clock(headers) == shared


def milliseconds(most: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, most)


@st.composite
def timelines(draw: st.DrawFn) -> dict[str, Any]:
    """Any records of a few steps and ranks, sound or not."""
    ranks, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    names = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint", "arrival", "done")

    def table(of: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [[draw(of) for _ in range(ranks)] for _ in range(steps)]

    return {"wall": table(st.integers(1, 200)), **{name: table(milliseconds(150)) for name in names}}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(timeline=timelines(), one_clock=st.booleans())
def test_phases_close_and_are_never_negative(
    make_records: MakeRecords, timeline: dict[str, Any], one_clock: bool
) -> None:
    ranks = len(timeline["wall"][0])
    phases = phases_of(make_records(**timeline), ranks, one_clock=one_clock)
    known = {name: times for name, times in phases.seconds.items() if times is not None}
    assert all((times >= 0).all() for times in known.values())
    wall = np.array(timeline["wall"]) / 1000
    excess = sum(known.values()) - wall
    assert (excess > -1e-12).all()  # nothing of a step is lost
    assert phases.closure_error == pytest.approx((excess.sum(axis=0) / wall.sum(axis=0)).max(), abs=1e-9)
    if "wait" in known and "transfer" in known and ranks == 1:
        assert not known["wait"].any()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(timeline=timelines(), shift=st.integers(0, 10**18), seed=st.integers(0, 99))
def test_shifting_all_clocks_and_relabelling_ranks_change_nothing(
    make_records: MakeRecords, timeline: dict[str, Any], shift: int, seed: int
) -> None:
    ranks = len(timeline["wall"][0])
    plain = phases_of(make_records(**timeline), ranks)
    shifted = phases_of(make_records(**timeline, base_ns=10**12 + shift), ranks)
    assert shifted.means_s() == plain.means_s()
    order = np.random.default_rng(seed).permutation(ranks)
    relabelled = {name: [[row[place] for place in order] for row in table] for name, table in timeline.items()}
    mixed = phases_of(make_records(**relabelled), ranks)
    assert mixed.means_s() == pytest.approx(plain.means_s(), abs=1e-15)
    assert mixed.closure_error == pytest.approx(plain.closure_error)
