"""Ranks of one process group exchange no gradients: each trains a model of its own.

What it is
    The program joins a process group and starts a training on every rank, and nothing makes them one training: the
    network is not wrapped, `all_reduce` is missing, or it is skipped by a condition that is never true (for years
    `train_dist.py` of a well-known tutorial asked whether `type(parameter) is torch.Tensor`). The losses fall, the job
    ends well, and its throughput looks perfect.

How it is found
    Every rank is in the same process group and runs backward passes, no gradients are reduced in them, and after the
    first step no collective moves more than one number. The rule asks for 10 steps of each rank, all of them recorded.

What it costs
    No time: without an exchange no rank waits. The result is that of one rank on its share of the data, and the
    samples per second of such ranks are those of unrelated trainings.

What to do
    Wrap the network in `torch.nn.parallel.DistributedDataParallel`, and call the wrapped network, not its `.module`;
    or average the gradients with `all_reduce` before each step of the optimizer. Afterwards compare a checksum of the
    parameters across ranks: they have to agree.

When it is wrong
    Where ranks are meant to train different models (an ensemble, a search), or average them more rarely than the
    recorded steps show. Collectives inside a compiled graph and memory that processes share are not recorded. The rule
    is silent where the program uses send and receive, RPC, MPI, Horovod, DeepSpeed or another such package, where DDP
    was made at all, and where a part of the records is missing: then it cannot tell. Any larger collective counts as an
    exchange, also one that carries no gradients.
"""

from __future__ import annotations

from allpull.analyse.collectives.exchange import NoExchange
from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence
from allpull.units import counted


def find(facts: Facts) -> list[Candidate]:
    """The job, if its ranks exchange no gradients."""
    return [] if facts.no_exchange is None else [candidate(facts.no_exchange)]


def candidate(unrelated: NoExchange) -> Candidate:
    """What is wrong with ``unrelated`` trainings; it needs no window."""
    source = f"the records of all ranks, {counted(unrelated.steps, 'step')} each"
    return Candidate(
        rule="no-exchange",
        kind="advice",
        title=unrelated.sentence,
        remedy=sentence(
            "wrap the network in DistributedDataParallel and call the wrapped one (",
            program("model = torch.nn.parallel.DistributedDataParallel(model)"),
            "), or average the gradients by all_reduce before each step of the optimizer; then compare a checksum of "
            "the parameters across ranks",
        ),
        evidence=(
            count("backward passes, none of which reduced gradients", unrelated.passes, source),
            count("collectives of more than one number after the first step", 0, source),
        ),
        foremost=True,
    )
