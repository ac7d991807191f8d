"""The network is slower than backward can hide: all ranks wait for gradients that are on their way.

What it is
    Every step moves 2(N−1)/N times the gradients over each link. What of that takes longer than the rest of backward
    is paid in every step, and by all ranks.

How it is found
    Ranks are blocked after the last of them has arrived, while the connections between hosts have something under way
    for most of that time. Within one host it has to be a quarter of a step. No host and no group of hosts stands out;
    those are `slow-link` and `shared-uplink`. Where connections are seen and are idle meanwhile, it is not the network
    that takes the time, and nothing is said.

What it costs
    The replay in which the network's share of every transfer is gone, and hosts take what they take, as in `slow-link`.

What to do
    A faster interface, if there is one (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, `--set launch.interface=ib0`);
    fewer bytes: `DDP(...).register_comm_hook(None, fp16_compress_hook)` halves them, gradients accumulated over k steps
    (`no_sync()`) are exchanged once in k, a larger batch a rank spreads them over more samples.

When it is wrong
    Connections that are not TCP are not seen, and then all blocked time is taken for the network's. A host that is too
    busy to read from its network keeps the connection of its neighbour busy. What hosts take to hand gradients on is
    hidden behind a network that takes as long. Outside of rehearsals the price is an upper bound because of that, and
    its interval begins where the last bucket takes as long as it did; where it is not known when buckets were ready,
    the exchange is one bucket, and nothing is sure. No network that one can buy takes no time, either.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import hosts_s, on_faster, said
from allpull.explain.evidence.network import LEAST
from allpull.explain.pricing.candidate import MIN_SHARE, Suspect, rate, seconds, share
from allpull.explain.rules.slow_link import SOURCE, moved
from allpull.replay.window import REDUCE
from allpull.schema.explained import Evidence
from allpull.units import show_time

BUSY = 0.4  # of the time, on the median way: crowded hosts acknowledge late, which makes idle links look busy for less
CERTAIN = 0.1  # of a step: blocked for so long, ranks wait for their network even where it is idle in forward
WITHIN = 0.25  # of a step: ranks of one host exchange through its memory, with the CPUs that they compute on
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "launch.interface")
ALMOST_ALL = 0.999  # a network without any share left would be infinitely fast


def find(facts: Facts) -> list[Suspect]:
    """The job, where transfers take longer than backward hides and no single way is to blame."""
    if facts.network.groups or facts.window.ranks < 2 or facts.blame is None:
        return []
    exposed_s = float(facts.blame.transfer_s.mean())
    part, busy = network_share(facts), facts.network.usually_busy
    if exposed_s <= 0 or part <= 0:
        return []
    measured = facts.network.rate
    without, bounds = on_faster(facts, 1 / (1 - min(part, ALMOST_ALL)))
    return [
        Suspect(
            rule="network-bound",
            kind="job",
            title=f"The exchange of gradients takes {show_time(exposed_s)} a step that backward does not hide",
            remedy=_remedy(facts),
            options=INTERFACES if len(facts.machine.host_names) > 1 else (),
            evidence=(
                seconds("transfer that backward does not hide", exposed_s, facts.span),
                *moved(facts)[1:],
                *(() if measured is None else (rate("what the ways between hosts gave", measured, SOURCE),)),
                *said(facts),
                *_seen(part, busy),
            ),
            without=without,
            bounds=bounds,
            least_share=_least(facts),
        )
    ]


def _seen(part: float, busy: float | None) -> tuple[Evidence, ...]:
    """What the connections between hosts did, where they were seen."""
    if busy is None:
        return ()
    return (
        share("of the time the median way between hosts had data under way", busy, SOURCE),
        share("of what buckets take that is the network's", part, SOURCE),
    )


def _least(facts: Facts) -> float:
    """The least share of a step that can be told from what hosts take for it themselves."""
    if len(facts.machine.host_names) < 2:
        return WITHIN
    busy = facts.network.usually_busy
    if busy is None or busy < BUSY:
        return CERTAIN
    return LEAST if hosts_s(facts) is None else MIN_SHARE  # of what hosts take nothing is left in the price


def _remedy(facts: Facts) -> str:
    hosts = len(facts.machine.host_names)
    if hosts < 2:
        joined = "; see how GPUs are joined: nvidia-smi topo -m" if facts.machine.accelerators else ""
        return (
            "let gradients be exchanged less often (no_sync() over several batches, a larger batch a rank), or among "
            f"fewer ranks with more threads each{joined}"
        )
    less = "send less: fp16_compress_hook, no_sync() over several batches, a larger batch a rank"
    ends = ". Two hosts have one way between them, so which end of it is slow cannot be told" if hosts == 2 else ""
    fast = "use the fastest interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, --set launch.interface=ib0)"
    return f"{fast}, or {less}{ends}"


def network_share(facts: Facts) -> float:
    """What of the time that buckets and calls take is the network's, as far as connections were seen; else all of it.

    The rest is that of the hosts, which hand the data over, and of messages that wait for a CPU.
    """
    busy = facts.network.busy_share
    if busy is None:
        return 1.0
    window = facts.window
    lane_s = 0.0 if window.reductions is None else float(window.reductions.seconds.sum())
    called_s = float(np.median(window.transfer_s[window.kind != REDUCE], axis=1).sum()) if window.events else 0.0
    taken_s = (lane_s + called_s) / max(1, window.steps.size)
    return min(1.0, busy * facts.step_s / taken_s) if taken_s > 0 else 0.0
