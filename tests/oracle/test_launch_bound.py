"""Item 8: a device that its host cannot feed is found without `busy_ns`, which such runs do not have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound, assert_priced
from tests.oracle.records import Recording
from tests.oracle.simulator import simulate
from tests.oracle.training import Device, even

FAST_HOST = Device(issue_share=0.1, pieces=10)


@pytest.mark.parametrize("share", [1.6, 2.5])
def test_a_host_that_issues_more_slowly_than_the_device_computes(judge: Judge, share: float) -> None:
    paced = even(device=Device(issue_share=share, pieces=10))
    step = simulate(paced).devices[0][20]
    assert step.paced > 0.9 * (step.end - step.begin)
    judged = judge(paced, dataclasses.replace(paced, device=FAST_HOST))
    assert_bound(judged.finding("launch-bound", ranks=[]), judged.truth)
    assert "mixed-precision" not in [finding.rule for finding in judged.explained.findings]


@pytest.mark.parametrize(("ranks", "share"), [(4, 1.6), (8, 1.4)])
def test_a_rank_that_others_once_got_ahead_of(judge: Judge, ranks: int, share: float) -> None:
    """All hosts issue equally slowly; those of the others went on while it evaluated once, and stay ahead."""
    device = Device(issue_share=share, pieces=10)
    paced = even(ranks=ranks, device=device).later("evaluation", 0.5, rank=0, steps=1)
    step = simulate(paced).devices[1][30]
    assert step.paced < 0.5 * (step.end - step.begin)
    judged = judge(paced, dataclasses.replace(paced, device=FAST_HOST))
    bound = judged.finding("launch-bound", ranks=[])
    assert_bound(bound, judged.truth)
    assert bound.gain.value < 1.1 * judged.truth
    assert "Rank 0" in bound.title


def test_no_rank_is_named_where_all_hosts_are_alike(judge: Judge) -> None:
    """The one host that others are a little ahead of is no slower than they are: without it, another one is."""
    paced = even(device=Device(issue_share=1.6, pieces=10))
    judged = judge(paced)
    assert not [finding for finding in judged.priced if finding.ranks], judged.said()


@pytest.mark.parametrize("seed", [1, 3])
def test_hosts_that_drift_apart_are_not_late_in_turn(judge: Judge, seed: int) -> None:
    """How long paced devices pass over a step depends on how far their hosts are ahead: nobody waits because of it."""
    rng = np.random.default_rng(seed)
    paced = even(ranks=8, steps=80, jitter=0.002, device=Device(issue_share=1.6, pieces=10), seed=seed)
    for rank in range(8):
        paced = paced.later("backward", 0.001 * rng.standard_normal(80), rank=rank)
    judged = judge(paced)
    assert [finding.rule for finding in judged.priced] == ["launch-bound"], judged.said()


def test_hosts_that_pause_in_turn(judge: Judge) -> None:
    healthy = even(jitter=0.005, steps=60, device=Device(issue_share=1.6, pieces=10))
    paused = healthy
    for step in range(3, 60, 3):
        paused = paused.later("forward", 0.050, rank=step // 3 % 4, steps=step)
    judged = judge(paused, healthy)
    assert_bound(judged.finding("rotating-imbalance"), judged.truth)


def test_a_host_that_keeps_ahead(judge: Judge) -> None:
    judged = judge(even(device=Device(issue_share=0.6, pieces=10)))
    assert not judged.priced, judged.said()
    assert "mixed-precision" in [finding.rule for finding in judged.explained.findings]


@pytest.mark.parametrize(("rank", "rule"), [(slice(None), "input-bound"), (2, "slow-loader-rank")])
def test_a_device_starves_in_its_phases_too(judge: Judge, rank: int | slice, rule: str) -> None:
    """After a fetch of 60 ms the host issues forward while the device waits for it: that goes with the fetch."""
    healthy = even(device=Device(issue_share=0.8, pieces=10))
    judged = judge(healthy.later("input", 0.060, rank=rank), healthy)
    assert_priced(judged.finding(rule), judged.truth)
    assert [finding.rule for finding in judged.priced] == [rule], judged.said()


@pytest.mark.parametrize(("share", "busy_share"), [(1.6, 0.66), (2.5, 0.42)])
def test_the_driver_knows_how_long_a_kernel_ran(judge: Judge, share: float, busy_share: float) -> None:
    """The bound is then near: computation is 0.62 and 0.40 of the step, the exchange of gradients up to 0.09."""
    paced = even(device=Device(issue_share=share, pieces=10))
    recording = Recording(gpu=lambda rank, seconds: {"busy_share": busy_share})
    judged = judge(paced, dataclasses.replace(paced, device=FAST_HOST), recording)
    bound = judged.finding("launch-bound", ranks=[])
    assert_bound(bound, judged.truth)
    assert bound.gain.value < 1.25 * judged.truth
