"""One rank, or a few, evaluate while all others wait: a serial section that more ranks do not shorten.

What it is
    Scripts written for one GPU evaluate the model on rank 0. The others wait in a barrier or in the next collective
    meanwhile, and by Amdahl's law that bounds the speed-up.

How it is found
    By evaluation that some ranks record in a step and others do not, or hardly; what all of them evaluate before the
    same meeting is not counted.

What it costs
    At most what the replay without it saves, as a separate job would; surely what is saved if all ranks share it
    evenly, which the evidence gives, too.

What to do
    Give every rank its part of the test set, and sum the scores: `DistributedSampler(test_set, shuffle=False)` and one
    `all_reduce` of hits and counts. Or evaluate checkpoints in a separate job (`sbatch --dependency`), so that training
    does not wait at all; or less often.

When it is wrong
    Where the other ranks do work of their own meanwhile, which is not recorded, less is lost.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence, within
from allpull.explain.remedy_text import evaluation_job, option_or
from allpull.replay.engine import replay
from allpull.replay.useful import TAKES_PART, sequential
from allpull.replay.whatif.work import evaluation_spread, without_sequential
from allpull.replay.window import Window
from allpull.units import show_time

PHASE = "evaluation"

EVALUATE_ON_ALL = sentence(program("DistributedSampler(test_set, shuffle=False)"), ", one all_reduce of the scores")


def find(facts: Facts) -> list[Candidate]:
    """The ranks that evaluate alone."""
    alone_s = evaluated_alone(facts.window).get(PHASE)
    if alone_s is None or facts.window.ranks < 2 or not alone_s.sum() > 0:
        return []
    by_rank = alone_s.sum(axis=0)
    ranks = tuple(int(rank) for rank in np.flatnonzero(by_rank >= TAKES_PART * by_rank.max()))
    by_step = np.zeros(facts.window.steps.size)
    np.add.at(by_step, facts.window.step_of, alone_s.max(axis=1))
    steps, times = by_step.size, int((by_step > 0).sum())
    spread = partial(evaluation_spread, part=evaluated_alone)
    without = partial(without_sequential, phases=(PHASE,), part=evaluated_alone)
    shared_s = (facts.replayed.total_s - replay(spread(facts.window)).total_s) / steps
    subject = (
        f"Rank {ranks[0]} evaluates" if len(ranks) == 1 else f"{len(ranks)} of {facts.window.ranks} ranks evaluate"
    )
    on_all = within("evaluate on all ranks: ", option_or(facts.start, "train.evaluation", "parallel", EVALUATE_ON_ALL))
    return [
        Candidate(
            rule="sequential-evaluation",
            kind="job",
            title=f"{subject} alone, {show_time(float(by_step.sum()) / times)} each time, while the others wait",
            remedy=sentence(on_all, "; or ", evaluation_job(facts.start)),
            evidence=(
                seconds("evaluation on these ranks, spread over all steps", float(by_step.sum()) / steps, facts.span),
                count("evaluations", times, facts.span),
                seconds("gain per step if all ranks share it evenly", shared_s, f"a replay of {facts.span}"),
            ),
            without=without,
            bounds=(spread, without),
            ranks=ranks,
        )
    ]


def evaluated_alone(window: Window) -> dict[str, Floats]:
    """The sequential evaluation, (events, ranks), less what all ranks evaluate before the same event besides."""
    return {
        name: seconds - seconds.min(axis=1, keepdims=True)
        for name, seconds in sequential(window).items()
        if name == PHASE
    }
