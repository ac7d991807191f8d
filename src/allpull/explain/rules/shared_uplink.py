"""The network between groups of hosts is slower than the links inside the groups.

What it is
    The job spans several switches, and the uplink between them is slower than the links below it, or full of other
    traffic.

How it is found
    By the rates of TCP connections between hosts, as in `slow-link`: the slow connections are all those between two
    groups of hosts, and all connections inside the groups are more than twice as fast.

What it costs
    The replay with transfers as fast as the connections inside the groups would make them, in which hosts take as long
    as in `slow-link`.

What to do
    Request hosts on one switch: `sbatch --switches=1@00:30:00`, or `--set slurm.switches=1@00:30:00`. Where one switch
    does not have enough of them, use fewer and fuller hosts.

When it is wrong
    Two slow hosts on one side look like a slow uplink. Rates are those of TCP: traffic over InfiniBand verbs is not
    observed. The time of the hosts to forward gradients is hidden while the uplink is slow, as in `slow-link`.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import host_evidence, on_faster
from allpull.explain.remedy import sentence, within
from allpull.explain.remedy_text import one_switch
from allpull.explain.rules.slow_link import gradient_evidence, rate_evidence
from allpull.units import percent


def find(facts: Facts) -> list[Candidate]:
    """The connection between two groups of hosts."""
    network = facts.network
    if len(network.groups) != 2 or network.slow_host is not None:
        return []
    without, bounds = on_faster(facts, network.faster)
    named = " and ".join(", ".join(group) for group in network.groups)
    near = one_switch(facts.start)
    return [
        Candidate(
            rule="shared-uplink",
            kind="job",
            title=f"Between {named} the network is {percent(1 / network.faster)} as fast as within these groups",
            remedy=sentence("request" if near else "use", " hosts on one switch", within(": ", near)),
            evidence=(*rate_evidence(network), *gradient_evidence(facts), *host_evidence(facts)),
            without=without,
            bounds=bounds,
        )
    ]
