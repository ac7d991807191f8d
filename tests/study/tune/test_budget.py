"""What the budget of a tuning has left: for the next trial, for the confirmation, and after a kill."""

from __future__ import annotations

import math

import pytest

from allpull.schema.results import Interval
from allpull.schema.tuned import Trial
from allpull.study.tune.budget import UNLIMITED, Budget, Spent


def trial(number: int, seconds: float, ranks: int = 2) -> Trial:
    value = Interval(value=1.0, low=1.0, high=1.0)
    return Trial(
        number=number,
        parameters={"a": number},
        state="completed",
        value=value,
        proposed_by="optuna",
        seconds=seconds,
        rank_s=seconds * ranks,
        run=str(number),
    )


START, BEST = trial(0, 20.0), trial(1, 10.0)


def spent(seconds: float, ranks: int = 2) -> Spent:
    return Spent(seconds=seconds, rank_s=seconds * ranks)


def test_the_confirmation_is_kept_back_as_long_as_start_and_best_take() -> None:
    budget = Budget(seconds=200.0, confirm=3)
    left = budget.left([START, BEST], BEST, spent(30.0))
    assert (left.seconds, left.rank_s) == (200 - 30 - 3 * 30, math.inf)
    assert Budget(confirm=3).left([START], START, spent(1e9)) == UNLIMITED
    assert budget.left([], None, spent(50.0)).seconds == 150.0


@pytest.mark.parametrize(("used_s", "ended"), [(30.0, None), (95.0, None), (96.0, "time")])
def test_the_search_ends_when_one_more_trial_would_cost_the_confirmation(used_s: float, ended: str | None) -> None:
    budget = Budget(seconds=200.0, confirm=3)  # of which 90 s confirm, and 15 s are the mean of the trials
    assert budget.exceeded([START, BEST], BEST, spent(used_s)) == ended


def test_the_limit_that_is_reached_first_is_named() -> None:
    assert Budget(trials=2, seconds=1.0).exceeded([START, BEST], BEST, spent(30.0)) == "trials"
    assert Budget(seconds=1e9, rank_s=50.0).exceeded([START, BEST], BEST, spent(30.0)) == "rank-hours"
    assert Budget(seconds=40.0).exceeded([], None, spent(41.0)) == "time"  # killed in its first trial, which hung


@pytest.mark.parametrize(("used_s", "pairs"), [(0.0, 3), (110.0, 3), (114.0, 3), (116.0, 2), (175.0, 0), (300.0, 0)])
def test_as_many_pairs_confirm_as_there_is_room_for(used_s: float, pairs: int) -> None:
    """90 s of 200 are missing; runs may take a twentieth longer than those before."""
    assert Budget(seconds=200.0, confirm=3).pairs([spent(30.0)] * 3, spent(used_s)) == pairs


def test_a_pair_that_a_killed_confirmation_completed_costs_nothing() -> None:
    assert Budget(seconds=100.0, confirm=3).pairs([Spent(), Spent(), spent(30.0)], spent(70.0)) == 3
    assert Budget(rank_s=100.0, confirm=3).pairs([Spent(), Spent(), spent(30.0)], spent(30.0)) == 2
