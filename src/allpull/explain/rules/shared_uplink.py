"""What groups of hosts share on the way to each other is slower than the links inside the groups.

What it is
    The job lies on several switches, and the uplink between them is thinner than the links below it, or full with the
    traffic of others.

How it is found
    By the rates of TCP connections between hosts, as in `slow-link`: the slow ways are all those between two groups
    of hosts, and inside the groups all are more than twice as fast.

What it costs
    The replay with transfers as fast as the ways inside the groups would make them, and with what hosts take as in
    `slow-link`.

What to do
    Ask for hosts on one switch: `sbatch --switches=1@00:30:00`, or `--set slurm.switches=1@00:30:00`. Where one switch
    has not enough of them, fewer and fuller hosts.

When it is wrong
    Two slow hosts on one side look like a slow uplink. Rates are those of TCP: what goes over InfiniBand verbs is not
    seen. What hosts take to hand gradients on is hidden while the uplink is slow, as in `slow-link`.
"""

from __future__ import annotations

from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import on_faster, said
from allpull.explain.pricing.candidate import Suspect
from allpull.explain.rules.slow_link import moved, rates
from allpull.units import percent


def find(facts: Facts) -> list[Suspect]:
    """The way between two groups of hosts."""
    network = facts.network
    if len(network.groups) != 2 or network.slow_host is not None:
        return []
    without, bounds = on_faster(facts, network.faster)
    named = " and ".join(", ".join(group) for group in network.groups)
    return [
        Suspect(
            rule="shared-uplink",
            kind="job",
            title=f"Between {named} the network gives {percent(1 / network.faster)} of what it gives among them",
            remedy="ask for hosts on one switch: sbatch --switches=1@00:30:00, or --set slurm.switches=1@00:30:00",
            options=("slurm.switches",),
            evidence=(*rates(network), *moved(facts), *said(facts)),
            without=without,
            bounds=bounds,
        )
    ]
