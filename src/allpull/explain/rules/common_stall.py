"""Now and then all ranks stall together: the job stands still, and no rank waits for another.

What it is
    All ranks recompile for a new shape, retry an allocation after emptying their caches, collect garbage in the same
    step, or wait for one file system or licence server. Each of them computes, as far as its own records show, so no
    wait shows the loss.

How it is found
    By the work that all ranks have in common in a step: that of the lower median rank. It stalls in steps in which this
    is at least twice the usual (four times where CPUs compute), if these are at most 15 % of the steps. Steps with
    an evaluation, a checkpoint or the first batch of an epoch are not counted.

What it costs
    The replay in which stalled steps have no more common work than usual. The number of stalls is taken as it is: a
    longer run may have more or fewer of them.

What to do
    Look at what happens in these steps: the evidence names them. Recompilation: `TORCH_LOGS=recompiles`, then
    `torch.compile(dynamic=True)` or padded shapes. Retries of the allocator:
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or a smaller batch. Garbage: `gc.freeze()` after the first
    steps. Files: `allpull probe storage` where the program writes.

When it is wrong
    A phase that the program does on purpose now and then, such as saving samples or printing, is a stall to this rule
    unless it is marked: `with allpull.phase("samples"):`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.common_work import common_phases, common_s, most_grown
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy_text import WHERE
from allpull.replay.whatif.work import without_stalls
from allpull.units import counted, show_time

STALLED, STALLED_ON_CPUS = 2.0, 4.0  # times the usual step: other activity of a machine makes a CPU lose as much
SELDOM = 0.15  # of the steps: what is more frequent is part of the program's rhythm
LEAST = 0.03  # of a step
NAMED = 5  # stalled steps by number


def find(facts: Facts) -> list[Candidate]:
    """The job, where all ranks stall in some steps."""
    window = facts.window
    phases = common_phases(facts)
    ordinary = ~window.odd
    if not phases or ordinary.sum() < 2 * MIN_POINTS:
        return []
    taken_s = common_s(facts, phases)
    usual_s = float(np.median(taken_s[ordinary]))
    stalls = ordinary & (taken_s > (STALLED_ON_CPUS if facts.on_cpus else STALLED) * usual_s)
    if not stalls.any() or usual_s <= 0 or stalls.sum() > SELDOM * ordinary.sum():
        return []
    more_s = taken_s[stalls] - usual_s
    often, each_s = counted(int(stalls.sum()), "time"), float(more_s.mean())
    numbers = ", ".join(f"{step:,}" for step in window.steps[stalls][:NAMED])
    more = "" if stalls.sum() <= NAMED else " and more"
    return [
        Candidate(
            rule="common-stall",
            kind="job",
            title=f"All ranks stall together {often}, by {show_time(each_s)} on average, "
            f"most of it {WHERE[most_grown(facts, phases, stalls, ordinary & ~stalls)]}",
            remedy=f"find out what happens in steps {numbers}{more}: recompilation (TORCH_LOGS=recompiles), retries of "
            "the allocator (torch.cuda.memory_stats()['num_alloc_retries']), garbage collection (gc.freeze()), files",
            evidence=(
                seconds(
                    "stalls of all ranks, spread over all steps", float(more_s.sum()) / window.steps.size, facts.span
                ),
                seconds("the longest of them", float(more_s.max()), facts.span),
                count(f"stalled steps: {numbers}{more}", int(stalls.sum()), facts.span),
            ),
            without=partial(without_stalls, stalls=stalls, phases=phases),
            least_share=LEAST,
            rare=stalls,
        )
    ]
