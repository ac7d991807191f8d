"""Many small messages: the time of each bucket is network latency, not bandwidth.

What it is
    A ring all-reduce among N ranks sends 2(N−1) messages in sequence for every bucket. With many ranks, small buckets
    and a distant network these latencies add up, whatever the bandwidth.

How it is found
    By the fastest round trip between hosts, measured by pings: a ring takes at least N−1 of them per bucket (Patarasuk
    & Yuan 2009). They must make up at least half of the time of the buckets.

What it costs
    The replay without that latency. The evidence also gives the gain of larger buckets alone.

What to do
    Larger buckets: `DDP(model, bucket_cap_mb=100)`, or `HOROVOD_FUSION_THRESHOLD=134217728` (its fusion buffer);
    hosts that are near each other (`sbatch --switches=1`); an algorithm with fewer hops (`NCCL_ALGO=Tree`).

When it is wrong
    NCCL uses trees where they are faster. They need 2 log₂ N messages in sequence, so there this is too high by a
    factor of (N−1) ÷ log₂ N.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, count, seconds, size
from allpull.explain.evidence.facts import Facts
from allpull.replay.engine import replay
from allpull.replay.whatif.network import with_buckets, with_network
from allpull.schema.explained import Evidence
from allpull.units import show_time

MOST = 0.5  # of the time of the buckets: otherwise bandwidth is the limit
LARGER = 4  # times the largest bucket: DDP's default of 25 MB becomes the 100 MB that its manual suggests


def find(facts: Facts) -> list[Candidate]:
    """The job, where latency is most of the time of the buckets."""
    lane, round_trip_s = facts.window.reductions, facts.machine.round_trip_s
    if lane is None or round_trip_s is None or len(facts.machine.host_names) < 2 or not lane.seconds.size:
        return []
    each_s = (facts.window.ranks - 1) * round_trip_s
    per_step_s = each_s * lane.buckets
    taken_s = float(lane.seconds.sum()) / lane.seconds.shape[0]
    if per_step_s < MOST * taken_s:
        return []
    return [
        Candidate(
            rule="latency-bound",
            kind="job",
            title=f"{'Each bucket' if lane.buckets > 1 else 'The one bucket'} of a step takes at least "
            f"{show_time(each_s)} of network latency",
            remedy="larger buckets: DDP(model, bucket_cap_mb=100), or HOROVOD_FUSION_THRESHOLD=134217728; hosts near "
            "each other: sbatch --switches=1",
            options=("HOROVOD_FUSION_THRESHOLD",),
            evidence=(
                seconds("latency of the buckets of a step, at least", per_step_s, "pings between hosts"),
                seconds("the fastest round trip between hosts", round_trip_s, "pings between hosts"),
                seconds("time of all buckets of a step", taken_s, facts.span),
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
    gained_s = facts.replayed.total_s - replay(with_buckets(facts.window, cap, latency_s=latency_s)).total_s
    return (
        size("the largest bucket", float(lane.size_bytes.max()), "buckets of DDP"),
        seconds(
            f"gain per step with buckets {LARGER} times as large",
            gained_s / max(1, facts.window.steps.size),
            f"a replay of {facts.span}",
        ),
    )
