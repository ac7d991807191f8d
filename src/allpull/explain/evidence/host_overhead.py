"""What a faster network cannot shorten: the time that hosts themselves take to hand gradients on.

A ring over TCP passes each bucket through all hosts, which read, add up and send on. While a slow link has more under
way, that is hidden behind it, and no clock of the run shows it; once the link is fast, it is what the last bucket
takes. So the price of a slow network lies between two questions: the last bucket takes as long as it did (surely no
less is gained), or hosts take no time (surely no more).

Where computing does not take the CPUs of ranks, which is so in a rehearsal, the kernel's count tells: what threads of
a rank ran or waited for a CPU they did for the exchange, and a bucket has its share of that. In rehearsed clusters of 4
and 8 ranks it says 6 to 10 and 11 to 15 ms where the last bucket of a healthy network takes 3 to 6 and 13 to 17.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Removal, seconds
from allpull.replay.whatif.network import faster
from allpull.replay.window import CALL, Window
from allpull.schema.explained import Evidence


def hosts_s(facts: Facts) -> float | None:
    """What hosts take for one transfer, s, whatever the network gives; None: computing takes the CPUs, too."""
    machine = facts.machine
    if not machine.is_rehearsal or machine.cpu_s is None or machine.queued_s is None:
        return None
    each = transfers(facts.window)
    return float(np.median(machine.cpu_s + machine.queued_s)) * facts.step_s / each if each else None


def transfers(window: Window) -> float:
    """How many transfers a step has: buckets, and collectives that the program calls and all ranks wait in."""
    called = int(((window.kind == CALL) & window.waits.all(axis=1)).sum()) if window.events else 0
    buckets = 0 if window.reductions is None else window.reductions.seconds.size
    return (called + buckets) / max(1, window.steps.size)


def on_faster(facts: Facts, rate_factor: float) -> tuple[Removal, tuple[Removal, Removal]]:
    """Transfers ``rate_factor`` times as fast: as well as can be told, and its bounds, for a suspect."""
    found = hosts_s(facts)
    surely = partial(faster, rate_factor=rate_factor, hosts_s=last_kept(facts.window))
    at_most = partial(faster, rate_factor=rate_factor)
    without = at_most if found is None else partial(faster, rate_factor=rate_factor, hosts_s=found)
    return without, (surely, at_most)


def last_kept(window: Window) -> Floats:
    """As ``hosts_s`` of ``faster``: the last bucket and all calls take as long as they did, other buckets no time."""
    buckets = 1 if window.reductions is None else window.reductions.buckets
    kept = np.zeros(buckets)
    kept[-1] = np.inf
    return kept


def host_evidence(facts: Facts) -> tuple[Evidence, ...]:
    """What of the price hosts are taken to keep, or may."""
    found, lane = hosts_s(facts), facts.window.reductions
    if found is not None:
        return (seconds("what hosts take to hand on a bucket, on any network", found, "CPU time of the ranks"),)
    if lane is None or lane.buckets < 2:
        return ()
    last_s = float((lane.seconds[:, -1] + lane.tail_s.mean(axis=1)).mean())
    return (seconds("the last bucket, of which hosts may take any part on any network", last_s, facts.span),)
