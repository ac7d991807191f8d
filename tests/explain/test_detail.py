"""What a report draws is what was replayed: parts tile each rank's steps, buckets follow each other on one lane."""

from __future__ import annotations

import numpy as np
import pytest
from tests.replay.windows import Call, late, window

from allpull.explain.detail import (
    DRAWN_RANKS,
    MAP_RANKS,
    MAP_STEPS,
    MOST_PAIRS,
    detail,
    lateness,
    ordinary_steps,
    shown_ranks,
    timeline,
    waiting,
)
from allpull.replay.blame import blame
from allpull.replay.window import Window
from allpull.schema.base import tag
from allpull.schema.explained import ExplainedWindow, ExplainResult, PhaseTimes

FAULTY = {
    "forward": 0.010,
    "backward": 0.020 + late(4, 30, rank=2, by_s=0.015),
    "optimizer": 0.001,
    "bucket_s": [0.004, 0.003],
    "tail_s": 0.0002,
}


def test_parts_of_a_rank_follow_each_other_without_gap_or_overlap():
    made = window(4, 30, calls=[Call(use="broadcast in forward")], **FAULTY)
    parts = list(timeline(made))
    steps = sorted({part.step for part in parts})
    for rank in range(4):
        mine = sorted((part for part in parts if part.rank == rank), key=lambda part: part.begin_s)
        for before, after in zip(mine, mine[1:], strict=False):
            assert after.begin_s == pytest.approx(before.end_s, abs=3e-6)
        whole = sum(part.end_s - part.begin_s for part in mine)
        assert whole == pytest.approx(made.wall_s[np.isin(made.steps, steps), rank].sum(), abs=1e-4)


def test_a_late_rank_does_not_wait_and_the_others_wait_for_it():
    parts = list(timeline(window(4, 30, **FAULTY)))
    waits = {
        rank: sum(one.end_s - one.begin_s for one in parts if (one.rank, one.part) == (rank, "wait"))
        for rank in range(4)
    }
    assert waits[2] == 0
    assert all(waits[rank] > 0.02 for rank in (0, 1, 3))


def test_buckets_follow_each_other_on_one_lane():
    buckets = [part for part in timeline(window(4, 30, **FAULTY)) if part.rank is None]
    assert len(buckets) == 2 * len({part.step for part in buckets})
    ordered = sorted(buckets, key=lambda part: part.begin_s)
    assert all(before.end_s <= after.begin_s + 1e-8 for before, after in zip(ordered, ordered[1:], strict=False))


def test_odd_steps_are_not_drawn_where_there_are_others():
    evaluation = np.zeros((30, 4))
    evaluation[::4, 0] = 0.5
    made = window(4, 30, evaluation=evaluation, **FAULTY)
    assert not made.odd[ordinary_steps(made)].any()


def test_a_map_of_many_ranks_keeps_the_culprit_and_a_page_holds_it():
    made = window(100, 300, forward=0.01, backward=0.02 + late(100, 300, rank=41, by_s=0.01), bucket_s=0.001)
    drawn = lateness(made, blame(made), [41])
    assert len(drawn.ranks) <= MAP_RANKS + 1
    assert len(drawn.steps) <= MAP_STEPS
    assert 41 in drawn.ranks
    mine = [row[drawn.ranks.index(41)] for row in drawn.late_s]
    assert np.median(mine) == pytest.approx(0.01, rel=0.05)


def test_the_latest_rank_is_drawn_though_no_finding_names_it():
    made = window(300, 40, forward=0.01, backward=0.02 + late(300, 40, rank=3, by_s=0.0027), bucket_s=0.001)
    drawn = detail(made_result(made), made, blame(made))
    assert drawn.lateness is not None
    assert 3 in drawn.lateness.ranks
    assert 3 in {part.rank for part in drawn.timeline}
    assert len({part.rank for part in drawn.timeline} - {None}) <= DRAWN_RANKS + 1


def test_ranks_are_spread_from_the_first_to_the_last():
    assert shown_ranks(10, 4).tolist() == [0, 3, 6, 9]
    assert shown_ranks(3, 8, [2]).tolist() == [0, 1, 2]


def test_who_waited_for_whom_and_why_sums_to_what_was_waited():
    made = window(4, 30, **FAULTY)
    charged = blame(made)
    found = waiting(made, charged)
    assert found is not None
    assert found.caused_s_per_step is not None
    caused = np.array(found.caused_s_per_step)
    assert caused.sum() == pytest.approx(charged.delay_s.sum() / 30)
    by_reason = np.sum(list(found.phases.values()), axis=0) + found.unattributed
    assert by_reason == pytest.approx(caused.sum(axis=1))
    assert found.phases["backward"][2] > 0.9 * caused[2].sum() > 0.030
    assert [pair.culprit for pair in found.pairs] == [2, 2, 2]
    assert sum(pair.seconds for pair in found.pairs) == pytest.approx(caused[2].sum())
    assert detail(made_result(made), made, charged).caused_s_per_step == found.caused_s_per_step


def test_of_many_ranks_the_pairs_that_waited_longest_stand_for_the_table():
    made = window(100, 20, forward=0.01, backward=0.02 + late(100, 20, rank=41, by_s=0.01), bucket_s=0.001)
    found = waiting(made, blame(made))
    assert found is not None
    assert found.caused_s_per_step is None
    assert len(found.pairs) == MOST_PAIRS
    assert {pair.culprit for pair in found.pairs} == {41}
    assert len(found.unattributed) == 100


def test_where_nobody_waits_there_is_nobody_to_wait_for():
    alone = window(1, 10, forward=0.01)
    assert waiting(alone, blame(alone)) is None


def made_result(made: Window) -> ExplainResult:
    """As much of an answer as a drawing needs."""
    nothing = PhaseTimes(mean={}, per_rank={})
    seen = ExplainedWindow(steps=made.steps.size, seconds=made.measured_s, first_step=0, last_step=1, level="bucket")
    return ExplainResult(
        schema=tag("explain"),
        run="made",
        reference=None,
        ranks=made.ranks,
        hosts=1,
        window=seen,
        efficiency=None,
        gains={},
        simulation_error=None,
        clock_error_s=None,
        phases=nothing,
        waiting=waiting(made, blame(made)),
        findings=[],
        healthy=None,
        notes=[],
    )
