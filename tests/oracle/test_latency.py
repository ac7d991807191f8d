"""Item 5: latency counts between hosts, where links carry the gradients, at the price of larger buckets."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Link, Recording
from tests.oracle.simulator import simulate
from tests.oracle.training import Bucket, Device, Training, Wire, even, spread

MIB = 1 << 20
STEPS = 22
CAPS_MIB = (4, 8, 16, 25, 50, 100)


def with_cap(training: Training, cap: int) -> Training:
    """Neighbouring buckets together, up to ``cap`` bytes; each is ready with its last gradient."""
    joined: list[Bucket] = []
    for bucket in training.passes[-1].buckets:
        if joined and joined[-1].bytes + bucket.bytes <= cap:
            joined[-1] = Bucket(bytes=joined[-1].bytes + bucket.bytes, ready=bucket.ready)
        else:
            joined.append(bucket)
    passes = tuple(dataclasses.replace(one, buckets=tuple(joined)) for one in training.passes)
    return dataclasses.replace(training, passes=passes)


def gains(training: Training) -> dict[int, float]:
    """MiB of a bucket → how much faster."""
    now = simulate(training).seconds(2)
    return {cap: now / simulate(with_cap(training, cap * MIB)).seconds(2) for cap in CAPS_MIB}


def recorded(training: Training, round_trip_s: float, *, carried: float = 1.0) -> Recording:
    """Pings of ``round_trip_s``, and TCP that carries this share of the gradients from each host to the next."""
    total = sum(bucket.bytes for bucket in training.passes[-1].buckets)
    step_s = simulate(training).seconds(2) / (training.steps - 2)
    sent = carried * 2 * (training.ranks - 1) / training.ranks * total / step_s
    ring = {(one, (one + 1) % training.hosts) for one in range(training.hosts)}
    links = {
        (one, other): Link(sent_bytes=sent, busy_share=0.5 * carried, rtt_s=round_trip_s)
        if (one, other) in ring
        else Link(sent_bytes=0, busy_share=0, rtt_s=round_trip_s)
        for one in range(training.hosts)
        for other in range(training.hosts)
        if one != other
    }
    return Recording(there_s=round_trip_s / 2, back_s=round_trip_s / 2, links=links)


def test_the_price_is_that_of_larger_buckets(judge: Judge) -> None:
    hops = 2 * 7  # a ring of eight, one rank per host
    wire = Wire(latency_s=hops * 0.0003, bytes_per_s=40 * MIB / 0.030)
    training = even(ranks=8, hosts=8, steps=STEPS, buckets=spread(total=40 * MIB, count=40), wire=wire)
    judged = judge(training, recording=recorded(training, 0.0006))
    found = judged.finding("latency-bound", ranks=[])
    truths = [gain for gain in gains(training).values() if gain > 1.0]
    assert found.gain is not None
    assert any(found.gain.value == pytest.approx(truth, rel=0.02) for truth in truths), (judged.said(), truths)


def test_over_gloo_a_hop_takes_a_whole_round_trip(judge: Judge) -> None:
    """Its receiver announces each buffer. The last bucket is small: its share of the bytes is less than a hop."""
    round_trip_s = 0.0006
    wire = Wire(latency_s=2 * 7 * round_trip_s, bytes_per_s=40 * MIB / 0.060)
    buckets = (*spread(total=40 * MIB, count=40), Bucket(bytes=MIB // 50, ready=1.0))
    training = even(ranks=8, hosts=8, steps=STEPS, buckets=buckets, wire=wire)
    pings = recorded(training, round_trip_s)
    assert "latency-bound" not in [found.rule for found in judge(training, recording=pings).priced]
    judged = judge(training, recording=dataclasses.replace(pings, backend="gloo"))
    found = judged.finding("latency-bound", ranks=[])
    truths = [gain for gain in gains(training).values() if gain > 1.0]
    assert found.gain is not None
    assert any(found.gain.value == pytest.approx(truth, rel=0.02) for truth in truths), (judged.said(), truths)


@pytest.mark.parametrize("count", [40, 150])
def test_the_best_size_may_be_far_larger(judge: Judge, count: int) -> None:
    """Round trips of 4 ms between eight hosts: 28 ms for each bucket, whatever its size. Few of them are best."""
    round_trip_s = 0.004
    total = 40 * MIB
    wire = Wire(latency_s=7 * round_trip_s, bytes_per_s=total / 0.020)
    training = even(ranks=8, hosts=8, steps=STEPS, buckets=spread(total=total, count=count), wire=wire)
    truths = gains(training)
    assert max(truths.values()) > 1.4 * truths[4]
    judged = judge(training, recording=recorded(training, round_trip_s))
    found = judged.finding("latency-bound", ranks=[])
    assert_priced(found, max(truths.values()), 0.02)
    advised = int(found.remedy.split("bucket_cap_mb=")[1].split(")")[0])
    mended = simulate(with_cap(training, advised * MIB)).seconds(2)
    assert simulate(training).seconds(2) / mended == pytest.approx(max(truths.values()), rel=0.02), found.remedy


def test_one_bucket_that_would_make_it_slower_is_not_advised(judge: Judge) -> None:
    latency_s = 0.002
    wire = Wire(latency_s=latency_s, bytes_per_s=100 * MIB / 0.045)
    training = even(ranks=8, hosts=8, steps=STEPS, buckets=spread(total=100 * MIB, count=25), wire=wire)
    truths = gains(training)
    assert truths[100] < 0.95
    judged = judge(training, recording=recorded(training, latency_s / 7))
    for found in judged.priced:
        if found.rule == "latency-bound":
            assert "bucket_cap_mb=100" not in found.remedy
            assert found.gain is not None
            assert found.gain.value < max(truths.values()) * 1.02, judged.said()


def test_hops_inside_hosts_do_not_count(judge: Judge) -> None:
    """Sixteen ranks on two hosts: of the 30 hops of a ring, 3.75 are between hosts."""
    round_trip_s = 0.0005
    wire = Wire(latency_s=3.75 * round_trip_s / 2, bytes_per_s=64 * MIB / 0.080)
    training = even(ranks=16, hosts=2, steps=STEPS, buckets=spread(total=64 * MIB, count=8), wire=wire)
    judged = judge(training, recording=recorded(training, round_trip_s))
    assert max(gains(training).values()) < 1.01
    assert "latency-bound" not in [found.rule for found in judged.priced], judged.said()


def test_pings_of_a_way_that_carries_no_gradients_say_nothing(judge: Judge) -> None:
    wire = Wire(latency_s=0.00005, bytes_per_s=64 * MIB / 0.070)
    buckets = spread(total=64 * MIB, count=8)
    training = even(ranks=8, hosts=8, steps=STEPS, buckets=buckets, wire=wire, device=Device())
    judged = judge(training, recording=recorded(training, 0.002, carried=1e-4))
    assert "latency-bound" not in [found.rule for found in judged.priced], judged.said()
