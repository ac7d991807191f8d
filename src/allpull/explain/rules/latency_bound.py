"""Many small messages: the time of each bucket is network latency, not bandwidth.

What it is
    A ring all-reduce sends 2(N−1) messages in sequence for every bucket, and each piece of it crosses from host to host
    at least 2(H−1) times. With many hosts, small buckets and a distant network these latencies add up, whatever the
    bandwidth.

How it is found
    By the fastest round trip between hosts, measured by pings: a bucket takes at least H−1 of them in a ring over H
    hosts (Patarasuk & Yuan 2009). Over Gloo it is twice as many, because there a message waits until its receiver says
    that it is ready. They must make up at least half of the time of the buckets, and not more than all of it: then
    gradients travel another way than the pings, or by another algorithm. It takes the times of buckets, so nothing is
    reported at the level of steps, nor where the connections observed between hosts do not carry the gradients.

What it costs
    The replay with larger buckets, the best of twice the largest one, four times, and so on up to a single bucket: each
    bucket saves its latency, and what is in it starts only when the last gradient of it is ready. The latency that
    remains is not counted. Over Gloo, hosts also take time for each message, so the interval reaches to where a bucket
    costs the mean of those recorded, whatever its size.

What to do
    Larger buckets: `DDP(model, bucket_cap_mb=100)`, or `HOROVOD_FUSION_THRESHOLD=134217728` (its fusion buffer);
    hosts that are near each other (`sbatch --switches=1`); an algorithm with fewer hops (`NCCL_ALGO=Tree`).

When it is wrong
    NCCL uses trees where they are faster. They cross between hosts 2 log₂ H times, so there the latency is too large by
    a factor of (H−1) ÷ log₂ H.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from allpull.explain.candidate import Candidate, count, seconds, size
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.latency import bucket_latency_s
from allpull.explain.remedy import joined, within
from allpull.explain.remedy_text import bucket_size, one_switch
from allpull.replay.engine import replay
from allpull.replay.whatif.network import with_buckets
from allpull.units import show_time

MOST = 0.5  # of the time of the buckets: otherwise bandwidth is the limit
TWICE = 2  # the last one: by less, no replay would differ much
MIB = 1 << 20


def larger_sizes(largest: int, whole: int) -> list[int]:
    """Sizes of buckets to try, bytes: each twice the one before, the first twice ``largest``, the last one ``whole``.

    >>> larger_sizes(10, 100), larger_sizes(100, 100)
    ([20, 40, 80, 100], [100])
    """
    sizes = [TWICE * largest]
    while sizes[-1] < whole:
        sizes.append(TWICE * sizes[-1])
    return [min(size, whole) for size in sizes]


def find(facts: Facts) -> list[Candidate]:
    """The job, where latency is most of the time of the buckets."""
    lane, each_s, round_trip_s = facts.window.reductions, bucket_latency_s(facts), facts.machine.round_trip_s
    if lane is None or each_s is None or round_trip_s is None or not facts.window.complete:
        return []
    if facts.window.level != "bucket" or not lane.seconds.size or lane.size_bytes is None or lane.size_bytes.sum() <= 0:
        return []
    gloo = facts.machine.uses_gloo
    taken_s = float(np.median(lane.seconds, axis=0).sum())  # that of one bucket may be its share of the bytes
    if not MOST * taken_s <= each_s * lane.buckets <= taken_s:
        return []
    largest = int(lane.size_bytes.max())
    larger = partial(with_buckets, gradients_bytes=facts.gradients_bytes)
    total_s = {
        cap: replay(larger(facts.window, cap, latency_s=each_s)).total_s
        for cap in larger_sizes(largest, int(lane.size_bytes.sum()))
    }
    cap = min(total_s, key=lambda one: total_s[one])
    without = partial(larger, cap_bytes=cap, latency_s=each_s)
    capped, near = bucket_size(facts.start, math.ceil(cap / MIB)), one_switch(facts.start)
    remedy = joined("; ", within("larger buckets: ", capped), within("hosts near each other: ", near))
    return [
        Candidate(
            rule="latency-bound",
            kind="job",
            title=f"{'Each bucket' if lane.buckets > 1 else 'The one bucket'} of a step takes at least "
            f"{show_time(each_s)} of network latency",
            remedy=remedy,
            evidence=(
                seconds("latency of the buckets of a step, at least", each_s * lane.buckets, "pings between hosts"),
                seconds("the fastest round trip between hosts", round_trip_s, "pings between hosts"),
                seconds("time of all buckets of a step", taken_s, facts.span),
                count("buckets of a step", lane.buckets, "buckets of DDP"),
                size("the largest bucket", largest, "buckets of DDP"),
            ),
            without=without,
            bounds=(without, partial(larger, cap_bytes=cap, latency_s=taken_s / lane.buckets)) if gloo else None,
        )
    ]
