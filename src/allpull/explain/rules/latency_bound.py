"""Many small messages: what each bucket takes is the latency of the network, not its rate.

What it is
    A ring all-reduce among N ranks sends 2(N−1) messages one after the other, for every bucket. With many ranks, small
    buckets and a far network these latencies add up, whatever the bandwidth.

How it is found
    By the fastest round trip between hosts, measured by pings: N−1 of them a bucket are the least that a ring takes
    (Patarasuk & Yuan 2009). They must make up at least half of what buckets take.

What it costs
    The replay without that latency. Beside it stands what larger buckets alone would gain.

What to do
    Larger buckets: `DDP(model, bucket_cap_mb=100)`, or `HOROVOD_FUSION_THRESHOLD=134217728` (its fusion buffer);
    hosts that are near each other (`sbatch --switches=1`); an algorithm with fewer hops (`NCCL_ALGO=Tree`).

When it is wrong
    NCCL takes trees where they are faster, which need 2 log₂ N messages: then this is too much by that factor.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, count, seconds, size
from allpull.replay.engine import replay
from allpull.replay.whatif import with_buckets, with_network
from allpull.schema.explained import Evidence
from allpull.units import show_time

MOST = 0.5  # of what buckets take: else the rate of the network is what limits
LARGER = 4  # times the largest bucket: DDP's default of 25 MB becomes the 100 MB that its manual suggests


def find(facts: Facts) -> list[Suspect]:
    """The job, where latency is most of what buckets take."""
    lane, round_trip_s = facts.window.reductions, facts.machine.round_trip_s
    if lane is None or round_trip_s is None or len(facts.machine.host_names) < 2 or not lane.seconds.size:
        return []
    each_s = (facts.window.ranks - 1) * round_trip_s
    per_step_s = each_s * lane.buckets
    taken_s = float(lane.seconds.sum()) / lane.seconds.shape[0]
    if per_step_s < MOST * taken_s:
        return []
    return [
        Suspect(
            rule="latency-bound",
            kind="job",
            title=f"{'Each bucket' if lane.buckets > 1 else 'The one bucket'} of a step takes at least "
            f"{show_time(each_s)} for its messages to go round",
            remedy="larger buckets: DDP(model, bucket_cap_mb=100), or HOROVOD_FUSION_THRESHOLD=134217728; hosts near "
            "each other: sbatch --switches=1",
            options=("HOROVOD_FUSION_THRESHOLD",),
            evidence=(
                seconds("latency of the buckets of a step, at least", per_step_s, "pings between hosts"),
                seconds("the fastest round trip between hosts", round_trip_s, "pings between hosts"),
                seconds("what all buckets of a step take", taken_s, facts.span),
                count("buckets of a step", lane.buckets, "buckets of DDP"),
                *_larger(facts, each_s),
            ),
            without=partial(with_network, latency_now_s=each_s),
        )
    ]


def _larger(facts: Facts, latency_s: float) -> tuple[Evidence, ...]:
    lane = facts.window.reductions
    if lane is None or lane.size_bytes is None or lane.size_bytes.sum() <= 0:
        return ()
    cap = LARGER * int(lane.size_bytes.max())
    gained_s = facts.played.total_s - replay(with_buckets(facts.window, cap, latency_s=latency_s)).total_s
    return (
        size("the largest bucket", float(lane.size_bytes.max()), "buckets of DDP"),
        seconds(
            f"what a step gains with buckets {LARGER} times as large",
            gained_s / max(1, facts.window.steps.size),
            f"a replay of {facts.span}",
        ),
    )
