"""A delay that is too rare for any rule, and too long to be passed over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.explain.made import STEPS, facts, found, job

from allpull.explain.evidence.lone_delays import MOST, lone_delays

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


def test_a_rank_that_a_finding_names_needs_no_note() -> None:
    assert lone_delays(facts(job(RANKS, forward=delayed(1, 3.0))), (2,)) == []


@pytest.mark.parametrize(("times", "by_s"), [(1, 0.05), (MOST + 1, 3.0), (0, 0.0)])
def test_jitter_and_what_happens_often_are_not_told(times: int, by_s: float) -> None:
    assert lone_delays(facts(job(RANKS, forward=delayed(times, by_s))), ()) == []


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


def test_what_a_rank_evaluates_alone_is_for_its_own_rule() -> None:
    own_s = delayed(3, 3.0)
    window = replace(job(RANKS, evaluation=own_s), odd=own_s.any(axis=1))
    assert lone_delays(facts(window), ()) == []
