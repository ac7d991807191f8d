"""The link of one host is slower than those of the others, and the ring of all ranks goes at its pace.

What it is
    A cable or port at a lower speed, a bad transceiver that loses packets, a host on another network, or a neighbour
    that fills its link.

How it is found
    By the rates that TCP connections between hosts gave while they had something to send. The slow ways all begin or
    end at one host, and are less than half as fast as any other. It takes three hosts: two have one way between them.

What it costs
    The replay with transfers as fast as the other ways would make them. What hosts take themselves to hand a bucket on
    stays: in a rehearsal the CPU time of ranks tells it. Elsewhere nothing does, so that the price is an upper bound,
    and its interval begins where the last bucket takes as long as it did.

What to do
    `ethtool DEVICE` for its speed and `ethtool -S DEVICE` for errors, `ibstat` on InfiniBand; until it is mended,
    `sbatch --exclude=HOST`.

When it is wrong
    Rates are those of TCP: what goes over InfiniBand verbs or shared memory is not seen. A host whose CPU cannot serve
    its link looks like one with a slow link. What hosts take to hand gradients on is hidden while the link is slow: the
    price is off by as much as that is not known, a few percent of a step, and its interval allows for it.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import on_faster, said
from allpull.explain.evidence.network import Network
from allpull.explain.pricing.candidate import Suspect, count, rate, seconds, size
from allpull.explain.remedy_text import leave_out, quoted
from allpull.schema.explained import Evidence
from allpull.units import percent

SOURCE = "TCP connections of the ranks"


def find(facts: Facts) -> list[Suspect]:
    """The host whose link is slow."""
    network = facts.network
    host = network.slow_host
    if host is None:
        return []
    without, bounds = on_faster(facts, network.faster)
    return [
        Suspect(
            rule="slow-link",
            kind="job",
            title=f"The link of {host} gives {percent(1 / network.faster)} of what the other links give",
            remedy=f"look at the port of {quoted([host])}: ethtool DEVICE for its speed, ethtool -S DEVICE for errors"
            f"{leave_out(facts.machine, host)}",
            evidence=(*rates(network), *moved(facts), *said(facts)),
            without=without,
            bounds=bounds,
            ranks=facts.machine.ranks_of(host),
            hosts=(host,),
        )
    ]


def rates(network: Network) -> tuple[Evidence, ...]:
    """What slow ways gave, and what the others."""
    fast = [way for way in network.ways if way not in network.slow]
    slow = float(np.median([way.bytes_per_s for way in network.slow]))
    return (
        rate(f"what the slow ways gave ({ways(network)})", slow, SOURCE),
        rate("what the other ways gave", float(np.median([way.bytes_per_s for way in fast])), SOURCE),
        count("segments sent again on the slow ways", sum(way.retransmits for way in network.slow), SOURCE),
    )


def ways(network: Network) -> str:
    """The slow ways, in words."""
    return ", ".join(f"{way.source} to {way.target}" for way in network.slow)


def moved(facts: Facts) -> tuple[Evidence, ...]:
    """The gradients of a step, and how long ranks were blocked after the last had arrived."""
    lane = facts.window.reductions
    blocked = (
        ()
        if facts.blame is None
        else (seconds("transfer that backward does not hide", float(facts.blame.transfer_s.mean()), facts.span),)
    )
    if lane is None or lane.size_bytes is None:
        return blocked
    return (*blocked, size("gradients of a step", float(lane.size_bytes.sum()), "buckets of DDP"))
