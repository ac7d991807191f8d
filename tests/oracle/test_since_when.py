"""A loss that begins or ends within the window: its gain is of the window, and the evidence says when it is there."""

from __future__ import annotations

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.training import even


def test_what_a_loss_that_begins_half_way_is_a_share_of(judge: Judge) -> None:
    """The gain is of the window; the evidence says since when the rank is late, and what each step costs since then."""
    healthy = even(steps=62)
    judged = judge(healthy.later("forward", 0.040, rank=1, steps=slice(32, None)), healthy)
    found = judged.finding("slow-rank", ranks=[1])
    assert_priced(found, judged.truth)
    (since,) = (line for line in found.evidence if "less than half of it before" in line.what)
    assert "from step 32 on," in since.what
    assert "the gain is of steps 2 to 61" in since.what
    assert since.value == pytest.approx(0.040, rel=0.03)


def test_a_loss_that_ends_is_certain_and_said_to_have_ended(judge: Judge) -> None:
    """In the first third of the steps a rank is late by half a step: the rest of them does not make that uncertain."""
    healthy = even(steps=152)
    judged = judge(healthy.later("backward", 0.050, rank=1, steps=slice(0, 52)), healthy)
    found = judged.finding("slow-rank", ranks=[1])
    assert_priced(found, judged.truth)
    (until,) = (line for line in found.evidence if "nearly nothing after it" in line.what)
    assert "up to step 51," in until.what
    assert "the gain is of steps 2 to 151" in until.what
    assert until.value == pytest.approx(0.050, rel=0.03)


def test_a_loss_that_begins_and_ends_is_said_to(judge: Judge) -> None:
    """In a third of the steps: price and interval hold what it is over all of them."""
    healthy = even(steps=152)
    judged = judge(healthy.later("forward", 0.030, rank=1, steps=slice(52, 102)), healthy)
    found = judged.finding("slow-rank", ranks=[1])
    assert_priced(found, judged.truth)
    assert "on average, from step 52 to 101" in found.title
    (between,) = (line for line in found.evidence if "nearly nothing before and after" in line.what)
    assert between.value == pytest.approx(0.030, rel=0.05)


def test_a_loss_from_the_first_step_on_has_no_begin(judge: Judge) -> None:
    healthy = even(steps=62)
    found = judge(healthy.later("forward", 0.040, rank=1), healthy).finding("slow-rank", ranks=[1])
    assert not [line for line in found.evidence if "cost per step" in line.what]
