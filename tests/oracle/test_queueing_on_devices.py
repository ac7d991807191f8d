"""Item 9: a host thread that waits for a CPU does not make its device slow."""

from __future__ import annotations

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, even

QUEUED = Recording(queued_s=(0.0, 0.0, 0.025, 0.0))  # a quarter of each step of rank 2


@pytest.mark.parametrize("queued_s", [(0.020,) * 4, QUEUED.queued_s], ids=["all", "rank 2"])
def test_queueing_that_the_device_does_not_see(judge: Judge, queued_s: tuple[float, ...]) -> None:
    judged = judge(even(device=Device()), recording=Recording(queued_s=queued_s))
    assert not judged.priced, judged.said()


def test_a_slow_device_whose_host_waits_unseen(judge: Judge) -> None:
    healthy = even(device=Device())
    judged = judge(healthy.later("backward", 0.030, rank=2), healthy, QUEUED)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)
    assert len(judged.priced) == 1, judged.said()


def test_without_the_phase_host(judge: Judge) -> None:
    """A quarter of the step is paced by the host, so it is not known how long the device was busy."""
    healthy = even(device=Device(pieces=10, ahead=1, issue_share=0.5))
    judged = judge(healthy.later("backward", 0.030, rank=2), healthy, QUEUED)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)
    assert len(judged.priced) == 1, judged.said()


def test_counters_of_the_host_of_a_slow_device(judge: Judge) -> None:
    """The threads of rank 2 wait for CPUs for as long as its device is late, and that device never waits for them."""

    def usage(rank: int, seconds: float) -> dict[str, int]:
        return {"processes": 1, "cpu_ns": int(1e9 * seconds), "queued_ns": int((3e8 if rank == 2 else 1e6) * seconds)}

    healthy = even(device=Device())
    judged = judge(healthy.later("backward", 0.030, rank=2), healthy, Recording(usage=usage))
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)
    assert len(judged.priced) == 1, judged.said()
