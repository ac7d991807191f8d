"""Item 10: `no-overlap` looks at the pass that reduces, and promises what its remedy does."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Bucket, Device, Training, Wire, even, spread

MIB = 1 << 20


def one_bucket(device: Device | None) -> Training:
    """100 MiB, exchanged in 100 ms after 100 ms of backward."""
    wire = Wire(latency_s=0.0, bytes_per_s=100 * MIB / 0.100)
    at_the_end = (Bucket(bytes=100 * MIB, ready=1.0),)
    return even(hosts=4, forward_s=0.0592, backward_s=0.100, buckets=at_the_end, wire=wire, jitter=0.005, device=device)


def recut(training: Training, count: int) -> Training:
    """The same gradients in equal buckets, ready evenly over backward."""
    total = sum(bucket.bytes for bucket in training.passes[0].buckets)
    passes = tuple(dataclasses.replace(one, buckets=spread(total=total, count=count)) for one in training.passes)
    return dataclasses.replace(training, passes=passes)


@pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])
def test_the_price_is_that_of_buckets_of_25_mib(judge: Judge, device: Device | None) -> None:
    late = one_bucket(device)
    judged = judge(late, recut(late, 4))
    assert_priced(judged.finding("no-overlap", ranks=[]), judged.truth)


def test_each_smaller_bucket_takes_the_latency_between_hosts(judge: Judge) -> None:
    """Three round trips of 2 ms in a ring over four hosts, four times in place of once."""
    round_trip_s = 0.002
    wire = Wire(latency_s=3 * round_trip_s, bytes_per_s=100 * MIB / 0.100)
    late = dataclasses.replace(one_bucket(Device()), wire=wire)
    judged = judge(late, recut(late, 4), Recording(there_s=round_trip_s / 2, back_s=round_trip_s / 2))
    assert_priced(judged.finding("no-overlap", ranks=[]), judged.truth, tolerance=0.003)


def test_the_same_time_is_not_sold_twice_without_a_word(judge: Judge) -> None:
    judged = judge(one_bucket(None))
    texts = {
        finding.rule: " ".join([finding.title, *(line.what for line in finding.evidence), *judged.explained.notes])
        for finding in judged.priced
    }
    if {"no-overlap", "network-bound"} <= texts.keys():
        assert "no-overlap" in texts["network-bound"] or "network-bound" in texts["no-overlap"]


def test_the_last_of_sixteen_passes_overlaps(judge: Judge) -> None:
    """Under ``no_sync`` all buckets are ready in the last sixteenth of backward, and overlap all of it."""
    wire = Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.040)
    reduces = (*(False,) * 15, True)
    judged = judge(even(passes=16, reduces=reduces, forward_s=0.003, backward_s=0.006, wire=wire))
    assert "no-overlap" not in [finding.rule for finding in judged.priced], judged.said()


def test_only_the_pass_that_reduces_can_hide_the_exchange(judge: Judge) -> None:
    wire = Wire(latency_s=0.0, bytes_per_s=50 * MIB / 0.050)
    late = even(
        passes=8,
        reduces=(*(False,) * 7, True),
        forward_s=0.003,
        backward_s=0.020,
        buckets=(Bucket(bytes=50 * MIB, ready=1.0),),
        wire=wire,
    )
    judged = judge(late, recut(late, 4))
    found = judged.finding("no-overlap", ranks=[])
    assert "bucket_cap_mb=12" in found.remedy
    assert_priced(found, judged.truth)


def test_buckets_that_overlap(judge: Judge) -> None:
    judged = judge(recut(one_bucket(None), 8))
    assert "no-overlap" not in [finding.rule for finding in judged.priced], judged.said()
