"""Now and then all ranks stall together: the job stands still, and no rank waits for another.

What it is
    All ranks recompile for a new shape, retry an allocation after emptying their caches, collect garbage in the same
    step, or wait for one file system or licence server. Each of them computes, as far as its phases show, so no wait
    shows the loss.

How it is found
    By the work that all ranks have in common in a step: that of the lower median rank. It stalls in steps in which this
    is at least twice the usual (four times where CPUs compute), if these are at most 15 % of the steps; what ranks
    waited for a CPU makes no stall, but is part of one. Steps with an evaluation, a checkpoint or the first batch of an
    epoch are not counted. Ranks record how long Python collects garbage and torch.compile compiles, and in which step
    CUDA's allocator retries: a cause is named if it covers a tenth of the stalled time of the lower median rank, and
    all that are named cover half of it. Files are named if ranks read and write at four times their usual rate in
    stalls of two samples of the counters and more, both by the time that steps take on their hosts.

What it costs
    The replay in which stalled steps have no more common work than usual. The number of stalls is taken as it is: a
    longer run may have more or fewer of them.

What to do
    Recompilation: `TORCH_LOGS=recompiles` names the guard that failed; then pad to fixed shapes, or
    `torch._dynamo.mark_dynamic(tensor, dim)`. Retries of the allocator:
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, fixed shapes, or a smaller batch. Garbage: `gc.freeze()` after
    the first steps, or `gc.disable()` and `gc.collect()` at the end of each epoch, on all ranks. Files:
    `allpull probe storage` where the program reads and writes. If the cause was not recorded, look at what happens in
    these steps: the evidence lists them.

When it is wrong
    A phase that the program does on purpose now and then, such as saving samples or printing, is a stall to this rule
    unless it is marked: `with allpull.phase("samples"):`. Files may be read and written during a stall that they do not
    cause. A compilation in another thread is named although training may have gone on.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, count, rate, seconds, share
from allpull.explain.evidence.common_work import common_phases, common_s, most_grown
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import per_step
from allpull.explain.evidence.late.stalls import COLLECTION, COMPILATION, RETRIES, explained_shares
from allpull.explain.evidence.loading.file_access import busier_in
from allpull.explain.evidence.start import Start
from allpull.explain.remedy import Action, joined, program, sentence, shell, within
from allpull.explain.remedy_text import WHERE, numbered, option_or, variable
from allpull.replay.whatif.work import lower_median, without_stalls
from allpull.replay.window import Bools
from allpull.schema.explained import Evidence
from allpull.units import counted, show_time

STALLED, STALLED_ON_CPUS = 2.0, 4.0  # times the usual step: other activity of a machine makes a CPU lose as much
SELDOM = 0.15  # of the steps: what is more frequent is part of the program's rhythm
LEAST = 0.03  # of a step
WAITED = "of that, time in which they waited for a CPU"
NAMED_SHARE = 0.1  # of the stalled time: less is not told
FILES = "files"

CAUSES = {
    COLLECTION: "Python collects garbage",
    COMPILATION: "torch.compile compiles",
    RETRIES: "CUDA's allocator empties its cache and tries again",
    FILES: "ranks read and write files",
}
"""Cause → what ranks do in the stalls."""

SHAPES = ": pad to fixed shapes (drop_last=True), or "
NOT_AMONG = (
    "the cause was not recorded: it is neither garbage collection, nor compilation, nor a retry of CUDA's allocator"
)
NOT_RECORDED = (
    "this run does not record causes: recompilation (TORCH_LOGS=recompiles), retries of the allocator "
    "(torch.cuda.memory_stats()['num_alloc_retries']), garbage collection (gc.freeze()) or files"
)


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
    lasted_s = lower_median(per_step(window, phases))
    more_s = np.maximum(lasted_s[stalls] - np.median(lasted_s[~stalls]), 0.0)
    waited_s = np.maximum(more_s - (taken_s[stalls] - usual_s), 0.0)
    together = " together" if window.ranks > 1 else ""
    often, each_s = counted(int(stalls.sum()), "time"), float(more_s.mean())
    numbers = numbered(window.steps[stalls])
    causes, cause_evidence = _causes(facts, stalls, more_s)
    where = WHERE[most_grown(facts, phases, stalls, ordinary & ~stalls)]
    return [
        Candidate(
            rule="common-stall",
            kind="job",
            title=f"{facts.all_ranks('stall')}{together} {often}, by {show_time(each_s)} on average, most of it {where}"
            + "".join(f"{', and' if place else ':'} {CAUSES[cause]}" for place, cause in enumerate(causes)),
            remedy=joined("; ", *(against(cause, facts.start) for cause in causes))
            or sentence(
                NOT_AMONG if facts.stalls.recorded else NOT_RECORDED,
                f"; see what the program does in steps {numbers} (",
                shell("py-spy dump --pid PID"),
                " during a stall)",
            ),
            evidence=(
                seconds(
                    "stalls of all ranks, spread over all steps", float(more_s.sum()) / window.steps.size, facts.span
                ),
                *(
                    (seconds(WAITED, float(waited_s.sum()) / window.steps.size, "CPU time of the ranks"),)
                    if waited_s.sum() >= NAMED_SHARE * more_s.sum()
                    else ()
                ),
                seconds("the longest of them", float(more_s.max()), facts.span),
                count(f"stalled steps: {numbers}", int(stalls.sum()), facts.span),
                *cause_evidence,
            ),
            without=partial(without_stalls, stalls=stalls, phases=phases),
            least_share=LEAST,
            rare=stalls,
        )
    ]


def _causes(facts: Facts, stalls: Bools, more_s: Floats) -> tuple[tuple[str, ...], tuple[Evidence, ...]]:
    """The causes of ``stalls`` (steps,), which take ``more_s`` (stalls,) longer than usual, and what shows them."""
    recorded = {cause: lower_median(paused_s)[stalls] for cause, paused_s in facts.stalls.seconds.items()}
    covered = explained_shares(more_s, recorded)
    if covered:
        evidence = (share(f"stalled time in which {CAUSES[one]}", part, facts.span) for one, part in covered.items())
        return tuple(covered), tuple(evidence)
    return of_files(facts, np.repeat(stalls[:, None], facts.window.ranks, axis=1))


def of_files(facts: Facts, held: Bools) -> tuple[tuple[str, ...], tuple[Evidence, ...]]:
    """File access as the cause of stalls of ranks that are ``held`` up, (steps, ranks), and what shows it."""
    rates = busier_in(facts.files, held)
    if rates is None:
        return (), ()
    whence = "counters of the ranks"
    return (FILES,), (
        rate("file access of a rank in the stalls", rates[0], whence),
        rate("the same in other steps", rates[1], whence),
    )


def against(cause: str, start: Start) -> Action:
    """What to do about ``cause``, a key of ``CAUSES``."""
    if cause == COLLECTION:
        freeze, disable, collect = program("gc.freeze()"), program("gc.disable()"), program("gc.collect()")
        often = (" after the first steps, or ", disable, " and ", collect, " at the end of each epoch, on all ranks")
        return sentence(freeze, *often)
    if cause == COMPILATION:
        log, mark = variable(start, "TORCH_LOGS", "recompiles"), program("torch._dynamo.mark_dynamic(tensor, dim)")
        less = within("; or do not compile: ", option_or(start, "train.compile", "none"))
        return sentence(log, " names the guard that failed", less or sentence(SHAPES, mark))
    if cause == RETRIES:
        expandable = variable(start, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        return sentence(expandable, ", fixed shapes, or a smaller batch")
    probe = shell("allpull probe storage DIRECTORY")
    return sentence("measure the file system: ", probe, "; write less often, or in another process")
