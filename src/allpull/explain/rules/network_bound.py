"""Backward cannot hide the network: all ranks wait for gradients in transfer.

What it is
    Every step moves 2(N−1)/N times the gradients over each link. What takes longer than the rest of backward delays
    every step, on all ranks.

How it is found
    Ranks are blocked after the last of them has arrived, while the connections between hosts have data in flight for
    most of that time. Within one host whose CPUs compute, the blocked time has to be a quarter of a step; where ranks
    there wait for a CPU and exchange less than 50 MB/s, it is not memory that limits them but `cpu-contention`. No host
    and no group of hosts stands out; those are `slow-link` and `shared-uplink`. Where connections were observed and are
    idle meanwhile, the network does not take the time, and this rule reports nothing; nor does it where some rank left
    no records, for which the others may have waited.

What it costs
    The replay without the network's share of every transfer, in which hosts take as long as in `slow-link`.

What to do
    A faster interface, if there is one (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, `--set launch.interface=ib0`);
    fewer bytes: `DDP(...).register_comm_hook(None, fp16_compress_hook)` halves them, gradients accumulated over k steps
    (`no_sync()`) are exchanged once in k, a larger batch per rank spreads them over more samples. Where collectives
    that the program or its framework calls take most of the time, they are named instead. Sharded parameters, as
    FSDP's, are gathered once per step, not twice, with `reshard_after_forward=False`; DeepSpeed's ZeRO 3 has settings
    of its own for that. Many calls of one kind in a step are joined into few. Where ranks of one host exchange less
    than 50 MB/s, fewer bytes do not help: threads that are woken late take the time.

When it is wrong
    Connections other than TCP are not observed, and then all blocked time counts as the network's. A host that is too
    busy to read from its network keeps the connection of its neighbour busy. The time of the hosts to forward gradients
    is hidden behind a network that takes as long. So the price is an upper bound outside of rehearsals, and its
    interval begins where the last bucket takes as long as it did; where it is not known when buckets were ready, the
    exchange counts as one bucket, and no part of the gain is certain. Also, every real network takes some time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allpull.explain.candidate import MIN_SHARE, Candidate, count, rate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import (
    THROUGH_MEMORY,
    exchange_waits_for_cpus,
    exchanged_bytes,
    has_small_buckets,
    host_evidence,
    hosts_s,
    on_faster,
)
from allpull.explain.evidence.hosts.network import LEAST
from allpull.explain.remedy import Action, joined, program, sentence, within
from allpull.explain.remedy_text import CAP_MIB, TOPOLOGY, bucket_size, fast_interface, option_or
from allpull.explain.rules.slow_link import SOURCE, gradient_evidence
from allpull.replay.engine import event_times
from allpull.replay.window import REDUCE
from allpull.schema.explained import Evidence
from allpull.units import show_bytes, show_time

BUSY = 0.4  # of the time, on the median connection: busy hosts acknowledge late, so idle links look up to that busy
CERTAIN = 0.1  # of a step: ranks blocked that long wait for the network, even if it is idle in forward
WITHIN = 0.25  # of a step: ranks of one host exchange through its memory, on the CPUs that they compute with
MOST_CALLS = 3  # collectives that are named
MANY_CALLS = 4  # of one kind in a step: DDP would have joined them
SHARDED = ("all_gather_into_tensor", "reduce_scatter_tensor")  # of parameters, and of their gradients: FSDP
EXCHANGE_LESS = sentence(
    "send less: ",
    program("from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook"),
    " and ",
    program("model.register_comm_hook(None, fp16_compress_hook)"),
    ", no_sync() over several batches, a larger batch per rank",
)
GATHER_LESS = sentence(
    "communicate less often (a larger batch per rank; with FSDP2, ",
    program("fully_shard(model, reshard_after_forward=False)"),
    ", and ",
    program("model.set_requires_gradient_sync(False)"),
    " over several batches)",
)
GATHER_LESS_IN_ZERO = sentence(
    "communicate less often (with DeepSpeed: a larger train_micro_batch_size_per_gpu; ZeRO 2 where parameters fit into "
    "memory whole; or larger stage3_param_persistence_threshold and stage3_max_live_parameters)"
)
REDUCE_LESS = sentence("no_sync() over several batches, or a larger batch per rank")
CALL_LESS = sentence("communicate less often: a larger batch per rank, or once in several steps")
ALMOST_ALL = 0.999  # a network with no share left would be infinitely fast


def find(facts: Facts) -> list[Candidate]:
    """The job, where transfers take longer than backward hides and no single connection is the cause."""
    if facts.network.groups or facts.window.ranks < 2 or facts.blame is None or exchange_waits_for_cpus(facts):
        return []
    if not facts.window.complete:
        return []  # what looks like transfer may be waiting for a rank without records
    exposed_s = float(facts.blame.transfer_s.mean())
    part, busy = network_share(facts), facts.network.usually_busy
    if exposed_s <= 0 or part <= 0:
        return []
    measured, calls = facts.network.rate, _calls(facts)
    called = sum(one.transfer_s for one in calls) > exposed_s / 2  # sharded parameters, or calls of the program itself
    what, work = ("Collectives take", "computation") if called else ("The exchange of gradients takes", "backward")
    without, bounds = on_faster(facts, 1 / (1 - min(part, ALMOST_ALL)))
    remedy = _remedy(facts, calls if called else ())
    return [
        Candidate(
            rule="network-bound",
            kind="job",
            title=f"{what} {show_time(exposed_s)} per step that {work} does not hide",
            remedy=remedy,
            evidence=(
                seconds(f"transfer that {work} does not hide", exposed_s, facts.span),
                *(evidence for one in calls if called for evidence in one.evidence(facts.span)),
                *gradient_evidence(facts)[1:],
                *_buckets(facts),
                *(() if measured is None else (rate("rate of the connections between hosts", measured, SOURCE),)),
                *host_evidence(facts),
                *_seen(part, busy),
            ),
            without=without,
            bounds=bounds,
            least_share=_least(facts),
        )
    ]


def _buckets(facts: Facts) -> tuple[Evidence, ...]:
    """How many buckets a step has, where they are small."""
    return (count("buckets of a step", facts.buckets, "buckets of DDP"),) if has_small_buckets(facts) else ()


def _seen(part: float, busy: float | None) -> tuple[Evidence, ...]:
    """What the connections between hosts did, where they were observed."""
    if busy is None:
        return ()
    return (
        share("share of the time that the median connection had data in flight", busy, SOURCE),
        share("share of the time of buckets that is the network's", part, SOURCE),
    )


def _least(facts: Facts) -> float:
    """The least share of a step that can be distinguished from the time of the hosts themselves."""
    if facts.window.on_device:
        return LEAST
    if len(facts.machine.host_names) < 2:
        return WITHIN if facts.on_cpus else CERTAIN
    busy = facts.network.usually_busy
    if busy is None or busy < BUSY:
        return CERTAIN
    return LEAST if hosts_s(facts) is None else MIN_SHARE  # the price contains no time of the hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """The calls of one use in a step: operation and phase, for how many s ranks are blocked by transfer, how many."""

    use: str
    transfer_s: float
    number: float

    def evidence(self, span: str) -> tuple[Evidence, ...]:
        took = seconds(f"of that, in {self.use}", self.transfer_s, span)
        if self.number < MANY_CALLS:
            return (took,)
        return (took, count(f"calls of {self.use} per step", round(self.number), span))


def _calls(facts: Facts) -> tuple[_Calls, ...]:
    """The collectives that the program or its framework calls, those for whose transfer ranks are blocked longest."""
    window = facts.window
    steps = max(1, window.steps.size)
    if not window.uses:
        return ()
    times = event_times(window)
    transfer_s = times.blocked_s - times.delay_s(window)
    calls = [
        _Calls(
            use=use,
            transfer_s=float(transfer_s[window.use == number].mean(axis=1).sum()) / steps,
            number=float((window.use == number).sum()) / steps,
        )
        for number, use in enumerate(window.uses)
        if (window.use == number).any()
    ]
    return tuple(sorted(calls, key=lambda one: -one.transfer_s)[:MOST_CALLS])


def _remedy(facts: Facts, calls: Sequence[_Calls]) -> Action:
    hosts = len(facts.machine.host_names)
    less = _less(facts, calls)
    if hosts < 2 and not calls and _is_late_not_full(facts):
        batch = option_or(facts.start, "train.batch", 2 * facts.start.batch)
        less = within("exchange less often: ", batch or REDUCE_LESS)
        late = f"{show_bytes(exchanged_bytes(facts))} per step are too few to take that long: threads are woken late"
        if has_small_buckets(facts):
            less = sentence("in fewer buckets: ", bucket_size(facts.start, CAP_MIB), "; or ", less)
        return sentence(
            f"{late}, and sending fewer bytes does not help; ", less, ", or fewer ranks with more threads each"
        )
    if hosts < 2:
        check = ("; check how the GPUs are connected: ", TOPOLOGY) if facts.machine.accelerators else ()
        return sentence(less, ", or among fewer ranks with more threads each", *check)
    ends = (
        ". Two hosts have one connection between them, so the data cannot tell which end is slow" if hosts == 2 else ""
    )
    return sentence("use the fastest interface (", fast_interface(facts.start), "), or ", less, ends)


def _is_late_not_full(facts: Facts) -> bool:
    """Whether CPUs of one host exchange so little that memory cannot be what limits them."""
    lane = facts.window.reductions
    size_bytes = exchanged_bytes(facts)
    if lane is None or not (facts.on_cpus and size_bytes):
        return False
    return size_bytes * len(lane.seconds) < THROUGH_MEMORY * float(lane.seconds.sum())


def _less(facts: Facts, calls: Sequence[_Calls]) -> Action:
    """How to send less, or less often; ``calls``: those that take the time, none where it is DDP's exchange."""
    start = facts.start
    batch = option_or(start, "train.batch", 2 * start.batch)
    if batch:  # our trainer
        sent = (
            option_or(start, "parallel.reshard", "false") if calls else option_or(start, "parallel.compression", "fp16")
        )
        return within("send less: ", joined(", or a larger batch per rank: ", sent, batch))
    if not calls:
        return EXCHANGE_LESS
    if any(one.use.startswith(SHARDED) for one in calls):
        return GATHER_LESS_IN_ZERO if facts.machine.uses_deepspeed else GATHER_LESS
    if calls[0].number < MANY_CALLS:
        return CALL_LESS
    joins = "which DistributedDataParallel does to gradients, in buckets"
    return sentence(f"join the tensors of the {round(calls[0].number)} calls per step ({joins}); or ", CALL_LESS)


def network_share(facts: Facts) -> float:
    """The network's share of the time of buckets and calls; all of it where connections were not observed.

    The other part is that of the hosts, which forward the data, and of messages that wait for a CPU.
    """
    busy = facts.network.busy_share
    if busy is None:
        return 1.0
    window = facts.window
    lane_s = 0.0 if window.reductions is None else float(window.reductions.seconds.sum())
    called_s = float(np.median(window.transfer_s[window.kind != REDUCE], axis=1).sum()) if window.events else 0.0
    taken_s = (lane_s + called_s) / max(1, window.steps.size)
    return min(1.0, busy * facts.step_s / taken_s) if taken_s > 0 else 0.0
