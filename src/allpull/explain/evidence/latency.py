"""What each bucket takes beside its bytes: the latency of a ring over all hosts, by the pings between them."""

from __future__ import annotations

from allpull.explain.evidence.facts import Facts

GLOO = 2  # times as many: receivers announce each buffer (sendNotifyRecvReady in gloo/transport/tcp/pair.cc)


def bucket_latency_s(facts: Facts) -> float | None:
    """How long the round trips of a bucket take at least; None: one host, no pings, or gradients go another way.

    A ring over H hosts takes H − 1 of them (Patarasuk & Yuan 2009).
    """
    round_trip_s, hosts = facts.machine.round_trip_s, len(facts.machine.host_names)
    if round_trip_s is None or hosts < 2 or facts.network.carries_other:
        return None
    return (hosts - 1) * round_trip_s * (GLOO if facts.machine.uses_gloo else 1)
