"""Item 2: who waits in a collective that the program called does not work, on an accelerator either."""

from __future__ import annotations

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.training import Call, Device, even

BROADCAST = (Call(op="broadcast", bytes=4096, root=0),)
GATHERS = tuple(Call(op="all_gather", bytes=8192, at=number / 10) for number in range(1, 10))
SUMS = tuple(Call(op="all_reduce", bytes=8192, phase="backward", at=number / 10 - 0.05) for number in range(1, 10))
READ = Device(sync=True, issue_share=0.2, pieces=4)  # `loss.item()` in each step: the host cannot run ahead


on_either = pytest.mark.parametrize("device", [pytest.param(None, id="cpu"), pytest.param(READ, id="device")])


@on_either
def test_a_root_whose_batch_is_late(judge: Judge, device: Device | None) -> None:
    """Batch norm under ``broadcast_buffers``: all ranks begin forward when rank 0 does."""
    healthy = even(calls=BROADCAST, device=device)
    judged = judge(healthy.later("input", 0.040, rank=0), healthy)
    assert_priced(judged.finding("slow-loader-rank", ranks=[0]), judged.truth)


@on_either
def test_a_root_that_logs_before_forward(judge: Judge, device: Device | None) -> None:
    healthy = even(calls=BROADCAST, device=device)
    judged = judge(healthy.later("other", 0.040, rank=0), healthy)
    found = [finding for finding in judged.priced if finding.ranks == [0]]
    assert len(found) == 1, judged.said()
    assert_priced(found[0], judged.truth)
    assert len(judged.priced) == 1, judged.said()


@on_either
def test_a_rank_for_which_gathers_wait(judge: Judge, device: Device | None) -> None:
    """SyncBatchNorm: nine gathers in forward, and rank 2 computes longer between them."""
    healthy = even(calls=GATHERS, device=device, jitter=0.005)
    judged = judge(healthy.later("forward", 0.030, rank=2), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


@on_either
def test_a_rank_for_which_sums_in_backward_wait(judge: Judge, device: Device | None) -> None:
    healthy = even(calls=GATHERS + SUMS, device=device, jitter=0.005)
    judged = judge(healthy.later("backward", 0.030, rank=2), healthy)
    assert_priced(judged.finding("slow-rank", ranks=[2]), judged.truth)


@on_either
def test_waiting_in_calls_is_waiting(judge: Judge, device: Device | None) -> None:
    healthy = even(calls=GATHERS, device=device, jitter=0.0)
    judged = judge(healthy.later("forward", 0.030, rank=2), healthy)
    waits = judged.explained.phases.per_rank["wait"]
    assert waits is not None
    assert [round(wait, 3) for wait in waits] == [0.030, 0.030, 0.0, 0.030]
