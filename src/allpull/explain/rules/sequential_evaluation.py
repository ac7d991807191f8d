"""One rank, or a few, evaluate while all others wait: a serial section that no number of ranks makes shorter.

What it is
    Scripts that were written for one GPU test the network on rank 0. The others stand in a barrier or in the next
    collective meanwhile, and by Amdahl's law that bounds the speed-up.

How it is found
    By evaluation that some ranks record in a step and others do not.

What it costs
    The replay without it. Beside it stands what is gained if all ranks share it evenly.

What to do
    Give every rank its part of the test set, and sum the scores: `DistributedSampler(test_set, shuffle=False)` and one
    `all_reduce` of hits and counts. Or evaluate checkpoints in a job of their own (`sbatch --dependency`), so that
    training does not wait at all; or less often.

When it is wrong
    Where the other ranks have work of their own meanwhile, which nothing records, less is lost.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, count, seconds
from allpull.replay.engine import replay
from allpull.replay.useful import TAKES_PART, sequential
from allpull.replay.whatif.work import evaluation_spread, without_sequential
from allpull.units import show_time

PHASE = "evaluation"


def find(facts: Facts) -> list[Suspect]:
    """The ranks that evaluate alone."""
    alone_s = sequential(facts.window).get(PHASE)
    if alone_s is None or facts.window.ranks < 2 or not alone_s.sum() > 0:
        return []
    by_rank = alone_s.sum(axis=0)
    ranks = tuple(int(rank) for rank in np.flatnonzero(by_rank >= TAKES_PART * by_rank.max()))
    by_step = np.zeros(facts.window.steps.size)
    np.add.at(by_step, facts.window.step_of, alone_s.max(axis=1))
    steps, times = by_step.size, int((by_step > 0).sum())
    shared_s = (facts.played.total_s - replay(evaluation_spread(facts.window)).total_s) / steps
    who = f"Rank {ranks[0]} evaluates" if len(ranks) == 1 else f"{len(ranks)} of {facts.window.ranks} ranks evaluate"
    return [
        Suspect(
            rule="sequential-evaluation",
            kind="job",
            title=f"{who} alone, {show_time(float(by_step.sum()) / times)} each time, while the others wait",
            remedy="evaluate on all ranks: DistributedSampler(test_set, shuffle=False), one all_reduce of the scores; "
            "or in a job of its own, from checkpoints: sbatch --dependency=after:JOB",
            evidence=(
                seconds("evaluation on few ranks, spread over all steps", float(by_step.sum()) / steps, facts.span),
                count("evaluations", times, facts.span),
                seconds("what a step gains if all ranks share it evenly", shared_s, f"a replay of {facts.span}"),
            ),
            without=partial(without_sequential, phases=(PHASE,)),
            ranks=ranks,
        )
    ]
