"""What a faster network cannot shorten: the time that hosts themselves take to forward gradients.

A ring over TCP passes each bucket through all hosts, which receive, add and forward it. While a slow link has more data
in flight, that time is hidden behind it, and nothing in the run shows it; once the link is fast, it is the time of the
last bucket. So the price of a slow network lies between two questions: the last bucket takes as long as it did (the
least gain), or hosts take no time (the largest).

Where computation does not use the CPUs of ranks, as in a rehearsal, the kernel's count gives it: the time that threads
of a rank ran or waited for a CPU was spent on the exchange, and each bucket has its share of it. In rehearsed clusters
of 4 and 8 ranks that is 6 to 10 and 11 to 15 ms, where the last bucket of a healthy network takes 3 to 6 and 13 to 17.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Removal, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import all_wait
from allpull.replay.whatif.network import faster
from allpull.replay.window import CALL, Window
from allpull.schema.explained import Evidence

FEW_BUCKETS = 2  # of a small network: the first one, and the rest
FIRST_BUCKET = 1 << 20  # bytes: the first bucket of DDP by default, and its smallest
THROUGH_MEMORY = 50e6  # bytes/s: ranks of one host exchange far more, whatever the number of messages, if they run


def hosts_s(facts: Facts) -> float | None:
    """The time of hosts for one transfer, s, on any network; None: computation uses the CPUs, too."""
    machine = facts.machine
    if not machine.is_rehearsal or machine.cpu_s is None or machine.queued_s is None:
        return None
    each = transfers(facts.window)
    return float(np.median(machine.cpu_s + machine.queued_s)) * facts.step_s / each if each else None


def exchanged_bytes(facts: Facts) -> float:
    """The gradients that DDP reduces in a step; 0: not known."""
    lane = facts.window.reductions
    return 0.0 if lane is None or lane.size_bytes is None else float(lane.size_bytes.sum())


def has_small_buckets(facts: Facts) -> bool:
    """Whether buckets are smaller than the smallest that DDP makes by itself, the first."""
    return facts.buckets > FEW_BUCKETS and exchanged_bytes(facts) < facts.buckets * FIRST_BUCKET


def exchange_waits_for_cpus(facts: Facts) -> bool:
    """Whether ranks of one host all wait for a CPU and exchange more slowly than memory and messages explain."""
    lane, machine = facts.window.reductions, facts.machine
    if lane is None or lane.size_bytes is None or not facts.on_cpus or len(machine.host_names) != 1:
        return False
    exchanged_bytes = float(lane.size_bytes.sum()) * len(lane.seconds)
    return exchanged_bytes < THROUGH_MEMORY * float(lane.seconds.sum()) and all_wait(facts.window, machine)


def transfers(window: Window) -> float:
    """Transfers per step: buckets, and collectives of the program in which all ranks wait."""
    called = int(((window.kind == CALL) & window.waits.all(axis=1)).sum()) if window.events else 0
    buckets = 0 if window.reductions is None else window.reductions.seconds.size
    return (called + buckets) / max(1, window.steps.size)


def on_faster(facts: Facts, rate_factor: float) -> tuple[Removal, tuple[Removal, Removal]]:
    """Transfers ``rate_factor`` times as fast: the best estimate and its bounds, for a candidate."""
    kept_s = hosts_s(facts)
    surely = partial(faster, rate_factor=rate_factor, hosts_s=last_kept(facts.window))
    at_most = partial(faster, rate_factor=rate_factor)
    without = at_most if kept_s is None else partial(faster, rate_factor=rate_factor, hosts_s=kept_s)
    return without, (surely, at_most)


def last_kept(window: Window) -> Floats:
    """``hosts_s`` for ``faster``: the last bucket and all calls take as long as they did, other buckets no time."""
    buckets = 1 if window.reductions is None else window.reductions.buckets
    kept = np.zeros(buckets)
    kept[-1] = np.inf
    return kept


def host_evidence(facts: Facts) -> tuple[Evidence, ...]:
    """The time of hosts that the price leaves, or may leave."""
    kept_s, lane = hosts_s(facts), facts.window.reductions
    if kept_s is not None:
        return (seconds("time of the hosts to forward a bucket, on any network", kept_s, "CPU time of the ranks"),)
    if lane is None or lane.buckets < 2:
        return ()
    last_s = float((lane.seconds[:, -1] + lane.tail_s.mean(axis=1)).mean())
    return (seconds("the last bucket, any part of which may be time of the hosts on any network", last_s, facts.span),)
