"""One rank has more samples than the others, and all wait while it processes them.

What it is
    The data were not split evenly: a shard is larger, or a sampler gives one rank more per step.

How it is found
    By the samples that ranks report: more than the median rank has, and forward and backward that are longer by at
    least half of the time that so many samples should take.

What it costs
    The replay in which the same samples are spread evenly over all ranks: forward and backward of this rank become
    shorter by its share of samples, and those of the others a little longer. What a sample takes is what the rank takes
    longer, divided by the samples that it has more: work that is the same for any number of samples stays. The number
    of samples stays the same, so the gain is one in samples per second.

What to do
    Give every rank the same number: `DistributedSampler(dataset, drop_last=True)`, shards of equal length, or
    `Join` where ranks cannot have the same number of batches.

When it is wrong
    Where samples differ in size, equal counts are not equal work: batches by length are uneven by design, and then the
    rank with more samples need not be the one with more work.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import per_step
from allpull.explain.evidence.late.lateness import BY_SAMPLE, Uneven, sample_shares
from allpull.explain.remedy import program, sentence
from allpull.explain.remedy_text import option_or
from allpull.explain.rules.slow_rank import waiting_evidence
from allpull.replay.whatif.work import scaled
from allpull.units import percent, show_time


def find(facts: Facts) -> list[Candidate]:
    """The ranks with more samples."""
    return [_suspect(one, facts) for one in facts.late.uneven]


def _suspect(one: Uneven, facts: Facts) -> Candidate:
    more = percent(one.share - 1)
    sampler = sentence(program("DistributedSampler(dataset, drop_last=True)"), ", or equal shards")
    return Candidate(
        rule="uneven-shards",
        kind="late",
        title=f"{facts.on(one.rank)} has {more} more samples than the others, "
        f"which take it {show_time(one.size.value)} per step",
        remedy=sentence("give all ranks as many samples: ", option_or(facts.start, "data.by_files", "false", sampler)),
        evidence=(
            seconds(f"time of the extra samples of rank {one.rank}", one.size, facts.span),
            share("its samples divided by those of the median rank", one.share, facts.span),
            *waiting_evidence([one.rank], facts),
        ),
        without=partial(scaled, phases=BY_SAMPLE, factor=_shared_out(one, facts)),
        ranks=(one.rank,),
    )


def _shared_out(one: Uneven, facts: Facts) -> Floats:
    """The factor on forward and backward of each rank, (ranks,), if all take an equal part of its extra samples."""
    own_s = per_step(facts.window, BY_SAMPLE).mean(axis=0)
    more_s = one.size.value * (moved(sample_shares(facts.window), one.rank) / (one.share - 1))
    factor: Floats = np.maximum(0.0, 1 + np.divide(more_s, own_s, out=np.zeros_like(own_s), where=own_s > 0))
    return factor


def moved(shares: Floats, rank: int) -> Floats:
    """How much more of the usual samples each rank has, (ranks,), if all take an equal part of the excess of ``rank``.

    >>> moved(np.array([1.0, 1.0, 2.0, 1.0]), 2)
    array([ 0.25,  0.25, -0.75,  0.25])
    """
    more = shares[rank] - 1.0
    change: Floats = np.where(np.arange(shares.size) == rank, -more, 0.0) + more / shares.size
    return change
