"""The link of one host is slower than those of the others, and limits the ring of all ranks.

What it is
    A cable or port at a lower speed, a bad transceiver that loses packets, a host on another network, or a neighbour
    that fills its link.

How it is found
    By the rates of TCP connections between hosts while they had data to send. The slow connections all begin or end at
    one host, and are less than half as fast as any other. This needs three hosts: two have only one connection.

What it costs
    The replay with transfers as fast as the other connections would make them. The time of the hosts themselves to
    forward a bucket stays: in a rehearsal it follows from the CPU time of ranks. Otherwise it is not known: the price
    is then an upper bound, and its interval begins where the last bucket takes as long as it did.

What to do
    `ethtool DEVICE` for its speed and `ethtool -S DEVICE` for errors, `ibstat` on InfiniBand; until it is repaired,
    `sbatch --exclude=HOST`.

When it is wrong
    Rates are those of TCP: traffic over InfiniBand verbs or shared memory is not observed. A host whose CPU cannot keep
    up with its link looks like one with a slow link. The time of the hosts to forward gradients is hidden while the
    link is slow: where it is not known the price is wrong by a few percent of a step, and its interval allows for that.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.candidate import Candidate, count, rate, seconds, size
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import host_evidence, on_faster
from allpull.explain.evidence.hosts.network import Network
from allpull.explain.remedy import sentence, shell
from allpull.explain.remedy_text import leave_out, quoted
from allpull.schema.explained import Evidence
from allpull.units import percent

SOURCE = "TCP connections of the ranks"


def find(facts: Facts) -> list[Candidate]:
    """The host whose link is slow."""
    network = facts.network
    host = network.slow_host
    if host is None:
        return []
    without, bounds = on_faster(facts, network.faster)
    return [
        Candidate(
            rule="slow-link",
            kind="job",
            title=f"The link of {host} is {percent(1 / network.faster)} as fast as the other links",
            remedy=sentence(
                f"check the port of {quoted([host])}: ",
                *(shell("ethtool DEVICE"), " for its speed, ", shell("ethtool -S DEVICE"), " for errors"),
                leave_out(facts.start, facts.machine, host),
            ),
            evidence=(*rate_evidence(network), *gradient_evidence(facts), *host_evidence(facts)),
            without=without,
            bounds=bounds,
            ranks=facts.machine.ranks_of(host),
            hosts=(host,),
        )
    ]


def rate_evidence(network: Network) -> tuple[Evidence, ...]:
    """The rates of the slow connections and of the others."""
    fast = [one for one in network.connections if one not in network.slow]
    slow = float(np.median([one.bytes_per_s for one in network.slow]))
    return (
        rate(f"rate of the slow connections ({connections(network)})", slow, SOURCE),
        rate("rate of the other connections", float(np.median([one.bytes_per_s for one in fast])), SOURCE),
        count(
            "segments retransmitted on the slow connections",
            sum(one.retransmits for one in network.slow),
            SOURCE,
        ),
    )


def connections(network: Network) -> str:
    """The slow connections, by their hosts."""
    return ", ".join(f"{one.source} to {one.target}" for one in network.slow)


def gradient_evidence(facts: Facts) -> tuple[Evidence, ...]:
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
