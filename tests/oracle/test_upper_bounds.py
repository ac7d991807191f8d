"""What "at most" is said of is gone with its jitter: of ranks that all lose time, the last one determines the step."""

from __future__ import annotations

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound
from tests.oracle.records import Recording
from tests.oracle.training import Device, Times, even

ALL = slice(None)


def varying(seconds: float, ranks: int, steps: int, relative: float) -> Times:
    noise = np.random.default_rng(9).standard_normal((ranks, steps))
    return np.asarray(seconds * np.maximum(0.3, 1 + relative * noise))


@pytest.mark.parametrize(("ranks", "relative"), [(2, 0.1), (8, 0.1), (8, 0.5)])
def test_all_queueing_is_gone_and_not_its_median(judge: Judge, ranks: int, relative: float) -> None:
    """Of eight ranks that wait 24 ms ± 10 % for a CPU in each step, at most 1.25 was said where the truth is 1.26."""
    healthy = even(ranks=ranks, steps=102, jitter=0.02)
    queued_s = varying(0.024, ranks, 102, relative)
    faulty = healthy.later("backward", 0.7 * queued_s, rank=ALL).later("forward", 0.3 * queued_s, rank=ALL)
    judged = judge(faulty, healthy, Recording(queued_by_step_s=queued_s))
    found = judged.finding("cpu-contention", ranks=[])
    assert_bound(found, judged.truth, 0.0015)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.01)


@pytest.mark.parametrize(
    "device", [None, pytest.param(Device(sync=True), marks=pytest.mark.slow)], ids=["cpu", "device"]
)
@pytest.mark.parametrize("relative", [0.0, 0.1, 0.3])
def test_all_time_between_phases_is_gone_and_not_its_median(
    judge: Judge, relative: float, device: Device | None
) -> None:
    healthy = even(ranks=8, steps=102, jitter=0.02, device=device, other_s=0.0001)
    judged = judge(healthy.later("other", varying(0.020, 8, 102, relative), rank=ALL), healthy)
    found = judged.finding("between-phases", ranks=[])
    assert_bound(found, judged.truth, 0.0015)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.01)


def test_what_one_rank_does_between_phases_is_not_in_the_bound_of_all(judge: Judge) -> None:
    """Rank 0 logs for 30 ms in each step, and for 0.3 s in every tenth one."""
    logging_s = np.full(102, 0.030)
    logging_s[9::10] += 0.3
    logging = even(ranks=4, steps=102, jitter=0.02, other_s=0.0001).later("other", logging_s, rank=0)
    judged = judge(logging.later("other", varying(0.015, 4, 102, 0.1), rank=ALL), logging)
    found = judged.finding("between-phases", ranks=[])
    assert_bound(found, judged.truth, 0.003)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.02)
