"""What a slow network costs is what a fast one would save: what hosts take to hand gradients on is not given back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.explain.made import facts, found, hosts_of, job, ring
from tests.replay.windows import Call, window

from allpull.explain.evidence.host_overhead import hosts_s, transfers
from allpull.explain.evidence.hosts.machine import Machine
from allpull.replay.engine import replay
from allpull.replay.window import Window
from allpull.schema.explained import Finding

HOSTS_S = 0.015
WIRE_S = (0.030, 0.040, 0.024)
SLOW = Machine(hosts=hosts_of(8), connections=ring(4, {(1, 2): 1e6, (2, 3): 1e6}, busy_share=1.0))
THIN = Machine(hosts=hosts_of(8), connections=ring(4, busy_share=1.0))
UPLINK = Machine(hosts=hosts_of(8), connections=ring(4, {(1, 2): 1e6, (3, 0): 1e6}, busy_share=1.0))


def slow() -> Window:
    return job(8, bucket_s=WIRE_S)


def cost_s() -> float:
    """What the slow network costs a step: on a fast one each bucket takes what hosts take."""
    before, after = replay(slow()), replay(job(8, bucket_s=(HOSTS_S,) * 3))
    return (before.total_s - after.total_s) / slow().steps.size


def rehearsed(machine: Machine, one: Window) -> Machine:
    """``machine`` under a rehearsal whose ranks take, or wait for, a CPU for ``HOSTS_S`` a bucket."""
    share = HOSTS_S * 3 / facts(one).step_s
    return replace(machine, is_rehearsal=True, cpu_s=np.full(8, share / 3), queued_s=np.full(8, 2 * share / 3))


def only_finding(machine: Machine) -> Finding:
    (one,) = found(slow(), machine).findings
    return one


@pytest.mark.parametrize("machine", [SLOW, THIN, UPLINK], ids=["slow link", "thin network", "slow uplink"])
def test_in_a_rehearsal_the_cpu_time_of_ranks_says_what_stays(machine: Machine) -> None:
    one = only_finding(rehearsed(machine, slow()))
    assert one.loss_s_per_step == pytest.approx(cost_s(), rel=0.05)
    assert any(
        each.what.startswith("time of the hosts") and each.value == pytest.approx(HOSTS_S) for each in one.evidence
    )


@pytest.mark.parametrize("machine", [SLOW, THIN, UPLINK], ids=["slow link", "thin network", "slow uplink"])
def test_elsewhere_the_price_is_an_upper_bound_and_its_interval_holds_the_truth(machine: Machine) -> None:
    one = only_finding(machine)
    step_s = facts(slow()).step_s
    assert one.gain is not None
    assert one.gain.low is not None
    assert one.gain.high == one.gain.value
    assert 1 < one.gain.low < step_s / (step_s - cost_s()) < one.gain.value
    assert any("the last bucket" in each.what for each in one.evidence)


def test_where_buckets_are_not_known_nothing_is_surely_gained() -> None:
    one = window(4, 40, forward=0.02, backward=0.04, bucket_s=0.05)
    (finding,) = found(one, Machine(hosts=hosts_of(4), connections=ring(2, busy_share=1.0))).findings
    assert finding.rule == "network-bound"
    assert finding.gain is not None
    assert finding.gain.low == 1
    assert finding.gain.high == finding.gain.value


def test_a_network_that_hides_no_more_than_its_hosts_take_is_no_fault() -> None:
    """Buckets take 0.3 ms more than the hosts: not worth a finding, though the connections are never idle."""
    one = job(8, bucket_s=(HOSTS_S + 0.0003,) * 3)
    assert found(one, rehearsed(THIN, one)).findings == ()


def test_computing_on_cpus_hides_what_hosts_take() -> None:
    one = slow()
    assert hosts_s(facts(one, replace(rehearsed(SLOW, one), is_rehearsal=False))) is None
    assert hosts_s(facts(one, replace(SLOW, is_rehearsal=True))) is None
    assert hosts_s(facts(one, rehearsed(SLOW, one))) == pytest.approx(HOSTS_S)


def test_buckets_and_collectives_of_the_program_are_transfers() -> None:
    calls = [Call(use="all_reduce", at="end", transfer_s=0.01), Call(use="all_reduce", at="begin", transfer_s=0.01)]
    assert transfers(job(2, calls=calls)) == 5
    assert transfers(window(2, 10, forward=0.01, reduces=False, calls=calls[:1])) == 1
    assert transfers(window(2, 10, forward=0.01, reduces=False)) == 0
