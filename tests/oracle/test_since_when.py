"""A loss that begins within the window: its gain is of the window, and the evidence says since when it is there."""

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


def test_a_loss_from_the_first_step_on_has_no_begin(judge: Judge) -> None:
    healthy = even(steps=62)
    found = judge(healthy.later("forward", 0.040, rank=1), healthy).finding("slow-rank", ranks=[1])
    assert not [line for line in found.evidence if "less than half of it before" in line.what]
