"""DDP broadcasts buffers before each forward pass, and ranks meet there once more per step.

What it is
    By default DDP sends the buffers of rank 0 (running means of batch normalisation, tables of constants) to all ranks
    before each forward pass. Training does not read running means, and the gradients of a step do not depend on them.

How it is found
    By the settings of DDP and the size of its buffers, which are recorded, and the broadcasts in forward of that size.
    Where the program itself broadcasts in forward, the two cannot be distinguished, and the rule is silent. Where CPUs
    compute, the broadcasts must cost 5 % of a step and send 1 MiB: ranks that are woken late for a small one are woken
    late for the next collective, too.

What it costs
    The replay without these broadcasts. What ranks wait there for a late rank is not saved: they meet it at the next
    collective, the all-gather of SyncBatchNorm or the reduction of gradients. Where all ranks wait for CPUs, the price
    is an upper bound.

What to do
    `DDP(model, broadcast_buffers=False)` (in newer versions of torch `forward_sync_buffers=False`), in Lightning
    `DDPStrategy(broadcast_buffers=False)`, in the Trainer of Transformers `ddp_broadcast_buffers=False`. Rank 0 keeps
    the running means that it has now; before all ranks evaluate, broadcast its buffers once.

When it is wrong
    Networks that read buffers while they train, and need them equal on all ranks: queues of negatives, codebooks,
    weights of a teacher, observers of quantisation.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.candidate import MIN_SHARE, Candidate, as_recorded, seconds, size
from allpull.explain.evidence.ddp_settings import BROADCAST
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import all_wait
from allpull.explain.remedy import sentence
from allpull.explain.remedy_text import keyword_of_ddp, option_or
from allpull.replay.engine import event_times
from allpull.replay.whatif.work import without_calls
from allpull.units import show_bytes, show_time

ON_CPUS = 0.05  # of a step: there the call takes part of the time that ranks wait for a CPU
IN_PROGRAM = sentence(
    keyword_of_ddp("broadcast_buffers=False"),
    ", forward_sync_buffers=False in newer versions of torch; where all ranks evaluate, broadcast the buffers once "
    "before that",
)
LEAST_ON_CPUS = 1 << 20  # bytes: without smaller ones two busy CPUs were no faster (paired runs with 1 KiB)


def find(facts: Facts) -> list[Candidate]:
    """The job, where DDP broadcasts buffers."""
    window = facts.window
    size_bytes = sum(one.buffers_bytes for one in facts.networks)
    if window.ranks < 2 or not size_bytes or not facts.broadcasts_only_buffers or BROADCAST not in window.uses:
        return []
    if facts.on_cpus and size_bytes < LEAST_ON_CPUS:
        return []
    called = window.use == window.uses.index(BROADCAST)
    blocked_s = float(event_times(window).blocked_s[called].sum(axis=0).mean()) / window.steps.size
    transfer_s = float(np.median(window.transfer_s[called].sum(axis=0))) / window.steps.size
    without = partial(without_calls, uses=(BROADCAST,))
    switch = option_or(facts.start, "parallel.broadcast_buffers", "false", IN_PROGRAM)
    return [
        Candidate(
            rule="broadcast-buffers",
            kind="job",
            title=f"DDP broadcasts {show_bytes(size_bytes)} of buffers before forward, which takes "
            f"{show_time(blocked_s)} per step",
            remedy=switch,
            evidence=(
                seconds("time that ranks are blocked in these broadcasts", blocked_s, facts.span),
                seconds("of that, transfer, on the median rank", transfer_s, facts.span),
                size("buffers that are broadcast", size_bytes, "settings of DDP"),
            ),
            without=without,
            bounds=(as_recorded, without) if all_wait(window, facts.machine) else None,
            least_share=ON_CPUS if facts.on_cpus else MIN_SHARE,
        )
    ]
