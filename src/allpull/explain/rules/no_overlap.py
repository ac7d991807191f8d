"""Gradients are exchanged after backward, not during it.

What it is
    All gradients are in one bucket, or none is exchanged before the last one is ready. The network is idle during
    backward, and all ranks are idle after it.

How it is found
    By when each bucket was ready: most of the bytes become ready in the last tenth of the backward pass that reduces
    them. Models with less than 1 MiB of gradients, which is the smallest bucket that DDP makes by default
    (`_DEFAULT_FIRST_BUCKET_BYTES`), are not reported: below that, the cost depends on the number of messages. Nor are
    runs on CPUs without idle time: there, an exchange during backward would take CPU time from backward.

What it costs
    The replay with buckets of 25 MiB, or of a quarter of the gradients where these are less than 100 MiB; no bucket
    divides the gradient of one parameter. Bytes are taken to become ready evenly over the backward pass that reduces
    them, and each bucket to take the latency between hosts, where pings show it. Where the size of the gradients is not
    known, at most what an exchange during the whole of backward saves.

What to do
    Smaller buckets: `DDP(model, bucket_cap_mb=25)`, or less for a small model. In other libraries the switch that
    delays the exchange: apex `DistributedDataParallel(delay_allreduce=False)`; and no explicit reduction after
    backward.

When it is wrong
    A network with nearly all parameters in its first layers has late gradients by nature; the price knows that only
    where most of them are one parameter, such as an embedding. Overlap slows down computation on accelerators, whose
    processors the collectives use, too.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.candidate import Candidate, as_recorded, count, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.latency import bucket_latency_s
from allpull.explain.remedy import sentence
from allpull.explain.remedy_text import CAP_MIB, bucket_size
from allpull.replay.whatif.network import backward_s, overlapped, with_buckets
from allpull.units import percent

LATE = 0.1  # of backward: what is ready only then cannot be hidden behind it
MOST = 0.8  # of the bytes
MIB = 1 << 20  # the first bucket of DDP by default; models with less are not reported
FULL = 0.8  # of the CPUs: beyond it an exchange and a backward pass take time from each other
LEAST = 0.05  # of a step: overlap has a cost of its own, which the replay does not know


def find(facts: Facts) -> list[Candidate]:
    """The job, where gradients become ready all at once."""
    lane = facts.window.reductions
    if lane is None or facts.window.level != "bucket" or facts.window.ranks < 2 or not lane.seconds.size:
        return []
    if not facts.window.complete:
        return []  # the lane may have waited for a rank without records
    if lane.networks is not None and np.unique(lane.networks).size > 1:
        return []  # their buckets differ
    if (lane.size_bytes is not None and lane.size_bytes.sum() < MIB) or not _has_processors_left(facts):
        return []
    sizes = np.ones(lane.buckets) if lane.size_bytes is None else lane.size_bytes.astype(np.float64)
    usual_backward_s = float(np.median(backward_s(facts.window, lane)))
    late = (np.median(lane.lead_s, axis=(0, 2)) <= LATE * usual_backward_s) @ sizes / sizes.sum()
    if late < MOST:
        return []
    total_bytes = None if lane.size_bytes is None else int(lane.size_bytes.sum())
    cap_mib = CAP_MIB if total_bytes is None else min(CAP_MIB, max(1, total_bytes // (4 * MIB)))
    latency_s = bucket_latency_s(facts) or 0.0
    if latency_s > float(np.median(lane.seconds, axis=0).min()):
        latency_s = 0.0  # gradients travel another way than pings
    gradients_bytes = facts.gradients_bytes
    smaller = partial(with_buckets, cap_bytes=cap_mib * MIB, latency_s=latency_s, gradients_bytes=gradients_bytes)
    exposed_s = float(facts.blame.transfer_s.mean()) if facts.blame is not None else 0.0
    return [
        Candidate(
            rule="no-overlap",
            kind="job",
            title=f"{percent(float(late))} of the gradients are ready only at the end of backward",
            remedy=sentence("smaller buckets: ", bucket_size(facts.start, cap_mib)),
            evidence=(
                seconds("transfer that backward does not hide", exposed_s, facts.span),
                share("share of the bytes that become ready in the last tenth of backward", float(late), facts.span),
                count("buckets of a step", lane.buckets, "buckets of DDP"),
            ),
            without=overlapped if total_bytes is None else smaller,
            bounds=(as_recorded, overlapped) if total_bytes is None else None,
            least_share=LEAST,
        )
    ]


def _has_processors_left(facts: Facts) -> bool:
    """Whether a processor is free for an exchange during backward: an accelerator's, or an idle CPU."""
    machine = facts.machine
    if machine.is_rehearsal or machine.accelerators or machine.cpu_s is None or machine.cpus is None:
        return True
    wanted = machine.cpu_s if machine.queued_s is None else machine.cpu_s + machine.queued_s
    return all(
        float(wanted[list(machine.ranks_of(host))].sum()) < FULL * machine.cpus.get(host, np.inf)
        for host in machine.host_names
    )
