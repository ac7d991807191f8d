"""Ranks whose gradients are averaged train on the same samples: together they learn what one of them would.

What it is
    Each rank reads the whole data set in the same order: no `DistributedSampler`, and a seed that all ranks share; or
    an `IterableDataset` that does not divide its samples. The losses fall, all ranks are busy and throughput looks
    perfect, and the mean of equal gradients is the gradient of one rank: each further rank is wasted.

How it is found
    The first batches that each rank trains on are digested (of large tensors only elements at equal distances). The
    rule asks for at least 3 batches that are not all the same one, equal on several ranks in the same order, and for
    gradients that DDP or FSDP averages over all ranks. It looks at what a loader gives or a network is called with, in
    the memory of the host: batches that are made on an accelerator are not seen.

What it costs
    No time of a step. An epoch takes as many steps as on one rank, and samples per second count each sample once for
    each rank that trained on it.

What to do
    Give the loader a `torch.utils.data.distributed.DistributedSampler`, and call its `set_epoch` in every epoch. An
    `IterableDataset` has to skip what other ranks read, by `rank` and, if it has workers, by `get_worker_info()`.

When it is wrong
    In a benchmark with random data from one seed, which trains nothing anyway. Where ranks are parts of one model
    (tensor or pipeline parallelism) they do share samples: there the rule is silent, and a note says what samples per
    second count. It is silent, too, where the program averages gradients by its own calls; the note is there then.
"""

from __future__ import annotations

from allpull.analyse.same_samples import SameSamples
from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence


def find(facts: Facts) -> list[Candidate]:
    """The ranks that train on the same samples, if their gradients are averaged."""
    return [] if facts.same_samples is None else [candidate(facts.same_samples)]


def candidate(same: SameSamples) -> Candidate:
    """What is wrong with ranks that train on the ``same`` samples; it needs no window."""
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
            count("first batches that are equal on these ranks", same.batches, "digests of the batches of all ranks"),
            count("ranks that train on the same samples", len(ranks), "digests of the batches of all ranks"),
        ),
        foremost=True,
    )
