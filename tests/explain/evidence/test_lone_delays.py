"""A delay that is too rare for any rule, and too long to be passed over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.explain.made import STEPS, facts, found, job

from allpull.explain.evidence.lone_delays import LISTED, MOST, lone_delays

RANKS = 4


def delayed(times: int, by_s: float) -> np.ndarray:
    """Rank 2 is late in ``times`` steps, shape (steps, ranks)."""
    late_s = np.zeros((STEPS, RANKS))
    late_s[7 : 7 + 5 * times : 5, 2] = by_s
    return late_s


def test_one_long_delay_of_a_rank_is_told_with_its_step_and_its_share() -> None:
    window = job(RANKS, forward=delayed(1, 3.0))
    (note,) = lone_delays(facts(window), ())
    assert note.startswith(f"in step {window.steps[7]} the others waited 3 s for rank 2, ")
    assert not found(window).findings


@pytest.mark.parametrize("first", [0, 15, STEPS - 6])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_disturbance_of_a_few_steps_is_one_delay(ranks: int, first: int) -> None:
    """None of its steps costs enough to be told; together they are a sixth of the run, and too few for a rule."""
    late_s = np.zeros((STEPS, ranks))
    late_s[first : first + 6, 1] = 0.06
    window = job(ranks, forward=late_s)
    findings = found(window).findings
    assert not findings
    (note,) = lone_delays(facts(window), findings)
    begin, end = window.steps[[first, first + 5]]
    assert note.startswith(f"in steps {begin} to {end} the others waited 3"), note
    assert "one delay does not tell what a longer run loses" in note


def test_healthy_ranks_that_are_late_by_chance_have_no_note() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        forward = rng.exponential(0.005, (STEPS, 2))
        assert lone_delays(facts(job(2, forward=forward)), ()) == []


def test_a_delay_for_which_a_finding_answers_needs_no_note() -> None:
    once, often = (job(RANKS, forward=delayed(times, 3.0)) for times in (1, MOST + 1))
    (named,) = found(job(RANKS, forward=np.full((STEPS, RANKS), 0.02) * (np.arange(RANKS) == 2))).findings
    in_turn = named.model_copy(update={"rule": "rotating-imbalance", "ranks": []})
    assert lone_delays(facts(once), [named]) == []
    assert lone_delays(facts(often), [in_turn]) == []
    assert lone_delays(facts(once), [in_turn]), "a few are none of those that come in turn"
    assert lone_delays(facts(once), [named.model_copy(update={"ranks": [1]})])


@pytest.mark.parametrize(("times", "by_s"), [(1, 0.05), (0, 0.0)])
def test_jitter_is_not_told(times: int, by_s: float) -> None:
    assert lone_delays(facts(job(RANKS, forward=delayed(times, by_s))), ()) == []


def test_of_many_delays_the_first_steps_are_listed() -> None:
    late_s = np.zeros((STEPS, RANKS))
    late_s[: 4 * (LISTED + 2) : 4, 2] = 3.0
    window = job(RANKS, forward=late_s)
    (note,) = lone_delays(facts(window), ())
    listed = ", ".join(str(step) for step in window.steps[: 4 * LISTED : 4])
    assert note.startswith(f"in steps {listed} and 2 more the others waited 24 s for rank 2, ")


def test_irregular_delays_that_no_rule_can_tell_from_chance_are_told() -> None:
    late_s = np.zeros((STEPS, 2))
    late_s[[6, 13, 30, 37], 1] = 0.3
    window = job(2, forward=late_s)
    assert not found(window).findings
    (note,) = lone_delays(facts(window), ())
    assert "the others waited 1.2 s for rank 1" in note


@pytest.mark.parametrize(("phase", "after"), [("forward", 0), ("other", 1)])
def test_delays_of_one_rank_are_told_together_and_also_where_an_epoch_begins(phase: str, after: int) -> None:
    """Rank 2 logs for 3 s at the begin of each of three epochs, when all evaluate, or after the last step before it."""
    own_s = delayed(3, 3.0)
    first = np.roll(own_s.any(axis=1), after)
    evaluation = np.where(first[:, None], 1.0, 0.0) * np.ones((STEPS, RANKS))
    window = replace(job(RANKS, evaluation=evaluation, **{phase: own_s}), odd=first)
    (note,) = lone_delays(facts(window, first=first), ())
    steps = ", ".join(str(step) for step in window.steps[first])
    assert note.startswith(f"in steps {steps}, in each of which an epoch begins, the others waited 9 s for rank 2, ")


def test_a_rank_that_evaluates_longer_in_a_few_of_the_evaluations_is_told() -> None:
    """Rank 2 draws plots while all evaluate, in two of five evaluations: too few for a rule."""
    evaluation = np.zeros((STEPS, RANKS))
    evaluation[7::8] = 0.2
    evaluates = evaluation.any(axis=1)
    evaluation[[31, 39], 2] += 3.0
    window = replace(job(RANKS, evaluation=evaluation), odd=evaluates)
    findings = found(window).findings
    assert all(one.rule != "uneven-evaluation" for one in findings)
    (note,) = lone_delays(facts(window), findings)
    assert note.startswith(f"in steps {window.steps[31]}, {window.steps[39]} the others waited 6 s for rank 2, ")
    (of_another,) = found(job(RANKS, forward=np.full((STEPS, RANKS), 0.02) * (np.arange(RANKS) == 0))).findings
    assert lone_delays(facts(window), [of_another.model_copy(update={"rule": "uneven-evaluation"})]) == []


def test_what_a_rank_evaluates_alone_is_for_its_own_rule() -> None:
    own_s = delayed(3, 3.0)
    window = replace(job(RANKS, evaluation=own_s), odd=own_s.any(axis=1))
    findings = found(window).findings
    assert [one.rule for one in findings] == ["sequential-evaluation"]
    assert lone_delays(facts(window), findings) == []
