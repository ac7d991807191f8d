"""All ranks evaluate, but one takes longer, and the others wait for it.

What it is
    A test set that was not split evenly, a rank that also computes the metrics or draws plots meanwhile, or one whose
    part has longer samples. Rollouts of reinforcement learning that one rank's environments make longer look the same.

How it is found
    By evaluation in steps in which every rank evaluates: the time of a rank beyond that of the lower median rank, if it
    is at least a fifth of that on average and in most of these steps, of which there are two or more. Evaluation on
    some of the ranks alone is `sequential-evaluation`; where all ranks wait for CPUs, that may be the cause.

What it costs
    The replay in which the evaluation of such a step is shared out evenly. The interval reaches up to that in which the
    rank evaluates no longer than the others: what it does there may be work that nobody has to take over.

What to do
    Split the test set evenly: `DistributedSampler(test_set, shuffle=False)`, and add up the metrics of all ranks
    (`all_reduce`). Do what only one rank does there, such as plots or saving, less often, in a thread, or after the
    training. Make rollouts equally long on all ranks.

When it is wrong
    Where a rank is slow in everything, its host is the cause, and `slow-rank` names it, too. Where the shares are even,
    and the rank has other work there, the gain is the upper end of the interval, not its value.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import all_wait
from allpull.explain.evidence.late.grouping import named
from allpull.explain.remedy import joined, program, sentence, within
from allpull.explain.remedy_text import option_or
from allpull.replay.useful import evaluated_by_all, useful
from allpull.replay.whatif.balanced import like_median
from allpull.replay.whatif.work import evaluation_spread, lower_median
from allpull.units import show_time

LEAST_TIMES = 2  # evaluations: one may have been disturbed
MOSTLY = 0.5  # of the evaluations
UNEVEN = 0.2  # of the lower median rank's evaluation: parts of a test set differ by less

OF_ONE = sentence(
    "if the shares are even: do what only this rank does there (metrics, plots, saving) less often, or in a thread, "
    "and make rollouts equally long"
)
EVALUATE_EVENLY = sentence(
    program("DistributedSampler(test_set, shuffle=False)"), ", and add up the metrics of all ranks with all_reduce"
)


def find(facts: Facts) -> list[Candidate]:
    """The ranks that evaluate longer than the others."""
    together = evaluated_by_all(facts.window)
    if facts.window.ranks < 2 or together.sum() < LEAST_TIMES or all_wait(facts.window, facts.machine):
        return []
    each_s = facts.window.per_step("evaluation")[together]
    mean_s = each_s.mean(axis=0)
    usual_s = float(lower_median(mean_s))
    mostly = (each_s > (1 + UNEVEN) * lower_median(each_s)[:, None]).mean(axis=0) > MOSTLY
    ranks = tuple(np.flatnonzero(mostly & (mean_s > (1 + UNEVEN) * usual_s)).tolist())
    if not ranks:
        return []
    more_s = float(mean_s.max()) - usual_s
    who = facts.on(ranks[0]) if len(ranks) == 1 else named(ranks, facts.machine)
    evenly = option_or(facts.start, "train.evaluation", "parallel", EVALUATE_EVENLY)
    shared = partial(evaluation_spread, part=useful)
    remedy = within("split the test set evenly: ", evenly)
    is_ours = facts.start.starter == "train"  # it evaluates, and does nothing else meanwhile
    return [
        Candidate(
            rule="uneven-evaluation",
            kind="job",
            title=f"{who} {'evaluates' if len(ranks) == 1 else 'evaluate'} {show_time(more_s)} longer than the others "
            "each time",
            remedy=remedy if is_ours else joined("; ", remedy, OF_ONE),
            evidence=(
                seconds("evaluation of the last rank beyond that of the others, each time", more_s, facts.span),
                seconds("evaluation of the lower median rank, each time", usual_s, facts.span),
                count("steps with an evaluation", int(together.sum()), facts.span),
            ),
            without=shared,
            bounds=None if is_ours else (shared, partial(like_median, ranks=ranks, phases=("evaluation",))),
            ranks=ranks,
        )
    ]
