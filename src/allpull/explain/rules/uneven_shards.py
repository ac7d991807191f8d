"""One rank has more samples than the others, and all wait while it works them off.

What it is
    The data were not split evenly: a shard is larger, or a sampler gives one rank more per step.

How it is found
    By the samples that ranks report: more than the median rank has, and forward and backward that are longer by at
    least half of what so many samples should take.

What it costs
    The replay in which the samples that there are lie on all ranks alike: forward and backward of this rank become
    shorter by its share of samples, and those of the others a little longer. As many samples are trained as before, so
    that the gain is one in samples per second.

What to do
    Give every rank equally many: `DistributedSampler(dataset, drop_last=True)`, shards of equal length, or
    `Join` where the end of the data cannot be helped.

When it is wrong
    Where samples differ in size, equal counts are no equal work: batches by length are uneven by design, and then the
    rank that has more samples need not be the one with more work.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.lateness import BY_SAMPLE, Uneven, sample_shares
from allpull.explain.pricing.candidate import Suspect, seconds, share
from allpull.explain.rules.slow_rank import waited
from allpull.replay.whatif.work import scaled
from allpull.units import percent, show_time


def find(facts: Facts) -> list[Suspect]:
    """The ranks with more samples."""
    return [_suspect(one, facts) for one in facts.late.uneven]


def _suspect(one: Uneven, facts: Facts) -> Suspect:
    more = percent(one.share - 1)
    return Suspect(
        rule="uneven-shards",
        kind="late",
        title=f"{facts.on(one.rank)} has {more} more samples than the others, "
        f"which takes it {show_time(one.size.value)} a step",
        remedy="give every rank equally many samples: DistributedSampler(dataset, drop_last=True), or equal shards",
        evidence=(
            seconds(f"what its extra samples take rank {one.rank}", one.size, facts.span),
            share("its samples over those of the median rank", one.share, facts.span),
            *waited([one.rank], facts),
        ),
        without=partial(scaled, phases=BY_SAMPLE, factor=shared_out(sample_shares(facts.window), one.rank)),
        ranks=(one.rank,),
    )


def shared_out(shares: Floats, rank: int) -> Floats:
    """What each rank then has of its samples, (ranks,), if all take an equal part of what ``rank`` has beyond a share.

    >>> shared_out(np.array([1.0, 1.0, 2.0, 1.0]), 2)
    array([1.25 , 1.25 , 0.625, 1.25 ])
    """
    more = shares[rank] - 1.0
    kept: Floats = (np.where(np.arange(shares.size) == rank, 1.0, shares) + more / shares.size) / shares
    return kept
