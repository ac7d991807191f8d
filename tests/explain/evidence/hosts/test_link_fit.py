"""What links say of buckets: the replay still ends when it ended, and a late rank costs what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.made import STEPS, job
from tests.replay.windows import anything, late

from allpull.explain.evidence.hosts.link_fit import with_links
from allpull.explain.evidence.late.cpu_waiting import COMPUTING
from allpull.replay.engine import replay
from allpull.replay.whatif.balanced import like_median

SIZES = (6 * 10**6, 3 * 10**6, 10**6)
BUSY = (0.022, 0.011, 0.0037)
"""Buckets of ``SIZES`` that take 10 ms each whatever their size, as solved from the ends of steps alone: a lane that is
busy all through a backward of 40 ms, of which they are ready after 13, 27 and 40, and ends 10 ms after it."""


@given(st.integers(0, 2**32 - 1), st.floats(0, 0.1))
@settings(max_examples=60)
def test_steps_end_when_they_ended(seed: int, busy_s: float) -> None:
    one = anything(seed)
    assert replay(with_links(one, busy_s)).end_s == pytest.approx(replay(one).end_s, rel=1e-9, abs=1e-9)


def test_a_lane_as_busy_as_its_links_stays_as_it_is() -> None:
    one = job(8, bucket_s=BUSY)
    assert with_links(one, sum(BUSY)) is one
    assert with_links(one, None) is one


def test_idle_links_leave_a_part_of_each_bucket_that_does_not_depend_on_its_size() -> None:
    lane = with_links(job(8, bucket_s=BUSY, sizes=SIZES), 0.005).reductions
    assert lane is not None
    assert np.median(lane.seconds, axis=0) == pytest.approx([0.0025 + 0.010, 0.0010 + 0.010, 0.0100], abs=0.001)
    sent = np.median(lane.seconds, axis=0) - np.median(lane.seconds[:, -1])
    assert sent[:2] == pytest.approx([0.0025, 0.001], rel=0.01)  # 5 ms shared out by bytes, less that of the last


def test_a_late_rank_behind_an_idle_network_costs_what_it_is_late() -> None:
    delayed = job(8, backward=late(8, STEPS, rank=3, by_s=0.02), bucket_s=(0.030, 0.015, 0.005), sizes=SIZES)

    def cost_s(one) -> float:
        return (replay(one).total_s - replay(like_median(one, (3,), COMPUTING)).total_s) / STEPS

    assert cost_s(delayed) < 0.015
    assert cost_s(with_links(delayed, 0.003)) == pytest.approx(0.02, rel=0.1)
