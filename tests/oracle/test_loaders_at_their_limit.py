"""Workers that make batches too slowly set the pace: what else becomes faster is waited for, and gains nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound, assert_priced
from tests.oracle.records import Link, Recording
from tests.oracle.training import Device, Loader, Training, Wire, even, spread

SLOW = Wire(latency_s=0.0002, bytes_per_s=0.8e9)  # 84 ms for the 64 MiB of a step


def loaded(training: Training, workers: int, batch_s: float, *, jitter: float = 0.02, seed: int = 5) -> Training:
    """``training`` whose batches take ``batch_s`` of one of ``workers`` workers."""
    drawn = np.random.default_rng(seed).standard_normal(training.input.shape)
    times = batch_s * np.clip(1.0 + jitter * drawn, 0.5, 2.0)
    return dataclasses.replace(training, loader=Loader(workers=workers, batch_s=times))


def of_processes(workers: int, *, timed: bool = False) -> Recording:
    """A recording whose counters see the workers, and the connections that carry the gradients.

    ``timed``: workers say how long they took for their batches.
    """

    def usage(_: int, __: float) -> dict[str, Any]:
        return {"processes": 1 + workers}

    links = {(0, 1): Link(sent_bytes=0.6e9, busy_share=0.6), (1, 0): Link(sent_bytes=0.6e9, busy_share=0.6)}
    return Recording(usage=usage, links=links, timed_workers=timed)


def slow_network(**more: Any) -> Training:
    """Two hosts whose network does not keep up with backward."""
    return even(ranks=2, hosts=2, steps=60, wire=SLOW, jitter=0.02, buckets=spread(total=64 << 20, count=4), **more)


@pytest.mark.parametrize(("workers", "device"), [(1, None), (2, None), (1, Device(issue_share=0.2))])
def test_a_network_behind_slow_workers_costs_nothing(judge: Judge, workers: int, device: Device | None) -> None:
    faulty = loaded(slow_network(device=device), workers, 0.250 * workers)
    faster = dataclasses.replace(faulty, wire=Wire(latency_s=0.0, bytes_per_s=1e13))
    judged = judge(faulty, faster, of_processes(workers))
    assert judged.truth == pytest.approx(1.0, abs=0.01)
    assert not [one for one in judged.priced if one.rule != "input-bound"], judged.said()
    assert judged.explained.gains["transfer"] == pytest.approx(1.0, abs=0.02)
    assert "batches come no sooner" in judged.notes()


@pytest.mark.parametrize(("workers", "batch_s"), [(1, 0.250), (2, 0.500), (4, 1.000)])
def test_faster_workers_gain_what_the_rest_of_the_step_allows(judge: Judge, workers: int, batch_s: float) -> None:
    faulty = loaded(slow_network(), workers, batch_s)
    judged = judge(faulty, dataclasses.replace(faulty, loader=None), of_processes(workers))
    assert judged.truth > 1.5
    found = judged.finding("input-bound", ranks=[])
    assert_priced(found, judged.truth, tolerance=0.02)
    assert "more loader workers" in found.remedy


def test_a_rank_whose_worker_is_out_of_phase_is_not_blamed(judge: Judge) -> None:
    """Two loaders of one speed: who waits longer is decided by when its first batch was ordered."""
    faulty = loaded(slow_network(), 1, 0.250)
    batch_s = faulty.loader.batch_s.copy()
    batch_s[1, 0] += 0.060
    shifted = dataclasses.replace(faulty, loader=Loader(workers=1, batch_s=batch_s))
    mended = dataclasses.replace(shifted, loader=Loader(workers=1, batch_s=np.where([[False], [True]], 0.05, batch_s)))
    judged = judge(shifted, mended, of_processes(1))
    assert judged.truth == pytest.approx(1.0, abs=0.01)
    assert [one.rule for one in judged.priced] == ["input-bound"], judged.said()


def test_the_one_slow_loader_is_still_found(judge: Judge) -> None:
    """The other rank's queue is full, so nothing limits it but the rank that is behind."""
    faulty = loaded(even(ranks=2, hosts=2, steps=60, jitter=0.02), 1, 0.050)
    batch_s = faulty.loader.batch_s.copy()
    batch_s[1] += 0.100
    slow = dataclasses.replace(faulty, loader=Loader(workers=1, batch_s=batch_s))
    judged = judge(slow, faulty, of_processes(1))
    assert judged.truth > 1.4
    assert_priced(judged.finding("slow-loader-rank", ranks=[1]), judged.truth, tolerance=0.02)


@pytest.mark.parametrize("device", [None, Device(issue_share=0.2)])
def test_a_fetch_that_takes_its_time_hides_nothing(judge: Judge, device: Device | None) -> None:
    """Batches are ready, but taking one from the queue takes 30 ms each time: the network still costs what it costs."""
    faulty = loaded(slow_network(input_s=0.030, device=device), 1, 0.020)
    faster = dataclasses.replace(faulty, wire=Wire(latency_s=0.0, bytes_per_s=1e13))
    judged = judge(faulty, faster, of_processes(1))
    finding = judged.finding("network-bound")
    assert judged.truth > 1.1
    assert finding.gain.low <= judged.truth <= finding.gain.high * 1.02, judged.said()
    assert "batches come no sooner" not in judged.notes()
    if device is None:  # more workers would make nothing faster
        assert "num_workers=0" in judged.finding("input-bound").remedy


@pytest.mark.parametrize("workers", [4, 6])
def test_where_steps_do_not_tell_the_price_is_a_bound(judge: Judge, workers: int) -> None:
    """Batches that vary far more than the rest of a step hide whether waits make up for it."""
    faulty = loaded(slow_network(), workers, 0.250 * workers, jitter=0.1)
    faster = dataclasses.replace(faulty, wire=Wire(latency_s=0.0, bytes_per_s=1e13))
    judged = judge(faulty, faster, of_processes(workers))
    assert_bound(judged.finding("network-bound"), judged.truth)


@pytest.mark.parametrize("together", [0.0, 0.3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_rank_and_a_loader_that_make_up_for_each_other_are_not_sold_twice(
    judge: Judge, seed: int, together: float
) -> None:
    """Both loaders are of one speed, which rank 1 meets; rank 0 gets ahead of its own, while it waits for rank 1.

    ``together``: the share of a batch's noise that the backward pass of its step has too, as on a busy machine. How far
    rank 0 gets ahead is not recorded, which makes the loader of rank 1 too dear by up to 3 %.
    """
    fast = loaded(even(ranks=2, hosts=2, steps=90, jitter=0.02, seed=seed), 1, 0.130, jitter=0.05, seed=seed)
    assert fast.loader is not None
    batch_s = fast.loader.batch_s
    fast = fast.later("backward", together * (batch_s - batch_s.mean()), rank=slice(None))
    slow = fast.later("forward", 0.025, rank=1)
    judged = judge(slow, fast, of_processes(1))
    assert judged.truth == pytest.approx(1.0, abs=0.03)
    assert_bound(judged.finding("slow-rank", ranks=[1]), judged.truth)
    for one in judged.priced:
        if one.rule == "slow-loader-rank":
            quick = np.where(np.arange(2)[:, None] == one.ranks[0], 0.02, batch_s)
            mended = dataclasses.replace(slow, loader=Loader(workers=1, batch_s=quick))
            assert one.gain is not None
            assert one.gain.low <= judge(slow, mended, of_processes(1)).truth * 1.03, judged.said()


def test_a_loader_that_nobody_waits_for_limits_what_a_late_rank_is_worth(judge: Judge) -> None:
    """Rank 1 sleeps 60 ms in a step of 190 ms, and its batches take 150: they are not waited for until it is mended."""
    fast = loaded(even(ranks=2, hosts=2, steps=90, jitter=0.02), 1, 0.150)
    slow = fast.later("forward", 0.060, rank=1)
    judged = judge(slow, fast, of_processes(1, timed=True))
    unlimited = judge(slow, dataclasses.replace(fast, loader=None), of_processes(1)).truth
    found = judged.finding("slow-rank", ranks=[1])
    assert unlimited > judged.truth * 1.1
    assert_priced(found, judged.truth, tolerance=0.03)


@pytest.mark.parametrize("workers", [1, 4, 6])
def test_where_workers_are_timed_a_network_behind_them_is_known_to_cost_nothing(judge: Judge, workers: int) -> None:
    """Also where batches vary far more than the rest of a step, which hides it from the waits."""
    faulty = loaded(slow_network(), workers, 0.250 * workers, jitter=0.1)
    faster = dataclasses.replace(faulty, wire=Wire(latency_s=0.0, bytes_per_s=1e13))
    judged = judge(faulty, faster, of_processes(workers, timed=True))
    for one in judged.priced:
        if one.rule != "input-bound":
            assert_priced(one, judged.truth, tolerance=0.03)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("workers", "batch_s"), [(1, 0.010), (4, 0.300)])
def test_loaders_far_from_their_limit_change_no_price(judge: Judge, workers: int, batch_s: float, timed: bool) -> None:
    faulty = loaded(slow_network(), workers, batch_s)
    faster = dataclasses.replace(faulty, wire=Wire(latency_s=0.0, bytes_per_s=1e13))
    judged = judge(faulty, faster, of_processes(workers, timed=timed))
    found = judged.finding("network-bound")
    assert found.gain is not None
    assert found.gain.low <= judged.truth <= found.gain.high * 1.02, judged.said()


def test_a_worker_slower_than_the_others_sets_their_pace(judge: Judge) -> None:
    """Batches come in turn from each: one that takes 700 ms for its own delivers 4 in that time, whoever waits."""
    fast = loaded(even(ranks=2, hosts=2, steps=120, jitter=0.02), 4, 0.100)
    assert fast.loader is not None
    batch_s = fast.loader.batch_s.copy()
    batch_s[1, ::4] = 0.600
    fast = dataclasses.replace(fast, loader=dataclasses.replace(fast.loader, batch_s=batch_s))
    slow = fast.later("forward", 0.080, rank=1)
    judged = judge(slow, fast, of_processes(4, timed=True))
    assert_priced(judged.finding("slow-rank", ranks=[1]), judged.truth, tolerance=0.04)
