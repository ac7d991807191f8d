"""Ranks whose gradients are averaged, or workers of one loader, give the same samples: they teach nothing new.

What it is
    Each rank reads the whole data set in the same order: no `DistributedSampler`, and a seed that all ranks share; or
    an `IterableDataset` that does not divide its samples. The losses fall, all ranks are busy and throughput looks
    perfect, and the mean of equal gradients is the gradient of one rank: each further rank is wasted.
    Or each worker of a rank's loader reads all that an `IterableDataset` has for the rank: it trains on each batch as
    many times in a row as it has workers, and an epoch has as many times the steps.

How it is found
    The first batches that each rank trains on are digested (of large tensors only elements at equal distances). Of
    ranks, the rule asks for at least 3 batches that are not all the same one, equal on several ranks in the same order,
    and for gradients that DDP or FSDP averages over all ranks. Of the workers of an `IterableDataset`, which give their
    batches in turn, it asks for batches that come as often as there are workers, each before the next. It looks at what
    a loader gives or a network is called with, in the memory of the host: batches that are made on an accelerator are
    not seen.

What it costs
    No time of a step. An epoch takes as many steps as on one rank, or on one worker as many times over, and samples per
    second count each sample once for each rank that trained on it, and each worker that gave it.

What to do
    Give the loader a `torch.utils.data.distributed.DistributedSampler`, and call its `set_epoch` in every epoch. An
    `IterableDataset` has to skip what other ranks read, by `rank`, and what other workers read, by `get_worker_info()`.

When it is wrong
    In a benchmark with random data from one seed, which trains nothing anyway. Where ranks are parts of one model
    (tensor or pipeline parallelism) they do share samples: there the rule is silent, and a note says what samples per
    second count. It is silent, too, where the program averages gradients by its own calls; the note is there then.
    Workers that repeat samples in an order or with changes of their own are not seen, nor are 16 of them or more.
"""

from __future__ import annotations

from allpull.analyse.iterable_samples import IterableSamples
from allpull.analyse.same_samples import SameSamples
from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence
from allpull.explain.remedy_text import DIVIDED

DIGESTS = "digests of the batches of all ranks"


def find(facts: Facts) -> list[Candidate]:
    """Ranks that train on the same samples, if their gradients are averaged, and those whose workers repeat some."""
    return candidates(facts.same_samples, facts.iterable_samples)


def candidates(same: SameSamples | None, iterable: IterableSamples | None) -> list[Candidate]:
    """What is wrong with ranks that train on the ``same`` samples, and with workers that do; it needs no window."""
    return [
        *([] if same is None else [_of_ranks(same)]),
        *([] if iterable is None or not iterable.repeating else [_of_workers(iterable)]),
    ]


def _of_ranks(same: SameSamples) -> Candidate:
    ranks = tuple(rank for group in same.groups for rank in group)
    return Candidate(
        rule="same-samples",
        kind="advice",
        title=f"{same.who[:1].upper()}{same.who[1:]} train on the same samples, and their gradients are averaged",
        ranks=() if len(same.groups[0]) == same.ranks else ranks,
        remedy=sentence(
            "give each rank its own share of the data: ",
            program("DataLoader(sampler=DistributedSampler(dataset))"),
            ", and call the sampler's set_epoch(epoch) before each epoch; an IterableDataset has to skip what other "
            "ranks and workers read",
        ),
        evidence=(
            count("first batches that are equal on these ranks", same.batches, DIGESTS),
            count("ranks that train on the same samples", len(ranks), DIGESTS),
        ),
        foremost=True,
    )


def _of_workers(iterable: IterableSamples) -> Candidate:
    return Candidate(
        rule="same-samples",
        kind="advice",
        title=f"The {iterable.workers:,} loader workers of {iterable.who} give the same samples, each of which is "
        f"trained on {iterable.workers:,} times in a row",
        ranks=() if len(iterable.repeating) == iterable.ranks else iterable.repeating,
        remedy=sentence(f"{DIVIDED}, or read with one worker: ", program("DataLoader(num_workers=1)")),
        evidence=(
            count("times that each of the first batches comes in a row", iterable.workers, DIGESTS),
            count("ranks whose workers do", len(iterable.repeating), DIGESTS),
        ),
        foremost=True,
    )
