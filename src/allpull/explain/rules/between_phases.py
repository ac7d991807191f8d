"""All ranks spend time between the phases of a step, and the records do not show on what.

What it is
    Logging, metrics, plots, a progress bar, hooks, garbage collection, or a phase of the program that is not marked.

How it is found
    By the phase `other`: what remains of a step without all known phases and collectives. Where a few steps hold nearly
    all of it, such as those in which epochs begin, the evidence names them. Ranks record how long Python collects
    garbage and torch.compile compiles: if that covers half of it, the title names it. Where accelerators compute, also
    by the phase `host`, in which they are idle, as far as it lasts longer than hosts issue forward, backward and
    optimizer.

What it costs
    At most what the replay without it saves, as far as ranks have it in common, with its jitter: some of this work is
    necessary. What one rank takes longer than the others is `slow-rank`; what ranks take in turn, `rotating-imbalance`.
    Where garbage collection covers half of it, the replay in which no rank collects garbage between phases: that is
    known of each rank and step, and none of it is necessary. An accelerator is then also fed in time, in the upper end
    of the interval.

What to do
    Find out what it is: mark it (`with allpull.marks.phase("metrics"):`), or look at a profiler window
    (`allpull run --trace`). Then do it less often, or in a thread.

When it is wrong
    Where collectives could not be matched across ranks, `other` includes them: a note says so, and this rule reports
    nothing. Work of a hook or callback inside forward or backward is not included. What a network computes that no
    optimizer trains, such as a teacher whose answers are learned from, is included, and necessary, where its parameters
    were frozen one by one and it was never put into `eval()`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.few_steps import in_few_steps
from allpull.explain.candidate import Candidate, Removal, as_recorded, count, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.idle_device import idle_device
from allpull.explain.evidence.late.cpu_waiting import is_work
from allpull.explain.evidence.late.stalls import COLLECTION, MOST, explained_shares
from allpull.explain.pricing.price import without_all
from allpull.explain.remedy import joined
from allpull.explain.remedy_text import mark_or_trace, numbered
from allpull.explain.rules.common_stall import CAUSES, against
from allpull.replay.whatif.levels import without_shared
from allpull.replay.whatif.work import lower_median, per_round, without_common, without_pacing, without_part
from allpull.replay.window import Window
from allpull.schema.explained import Evidence
from allpull.units import show_time

LEAST = 0.05  # of a step: any loop does some work between its phases


def find(facts: Facts) -> list[Candidate]:
    """The job, where all ranks spend time outside the known phases, or their hosts do and devices are idle."""
    found = [*_in_other(facts), *_while_idle(facts)]
    return found if len(found) < 2 else [_both(*found)]


def _both(one: Candidate, other: Candidate) -> Candidate:
    """Both as one finding: what their hosts do in the one time, they may do in the other."""
    without = partial(without_all, removals=[each.without for each in (one, other) if each.without is not None])
    return replace(
        one,
        title=f"{one.title}; {other.title[0].lower()}{other.title[1:]}",
        evidence=(*one.evidence, *other.evidence),
        without=without,
        bounds=(as_recorded, without),
    )


def _while_idle(facts: Facts) -> list[Candidate]:
    """The job, where devices are idle for longer than their hosts issue work."""
    idle = idle_device(facts)
    surely_s, most_s = idle.idle_s - idle.most_s, idle.idle_s - idle.least_s
    if surely_s < LEAST * facts.step_s:
        return []
    without = partial(without_common, phases=("host",), inside=(), share=most_s / idle.idle_s)
    return [
        Candidate(
            rule="between-phases",
            kind="job",
            title=f"Accelerators are idle for at least {show_time(surely_s)} per step in which their hosts issue no "
            "work, and do something else between the phases",
            remedy=mark_or_trace(facts.start),
            evidence=(
                seconds("device idle with nothing to wait for, on at least half of the ranks", idle.idle_s, facts.span),
                seconds("time in which hosts issue forward, backward and optimizer", idle.issued_s, facts.span),
                share("at most idle without that, of the step", most_s / facts.step_s, facts.span),
            ),
            without=without,
            bounds=(as_recorded, without),
            least_share=LEAST,
        )
    ]


def _in_other(facts: Facts) -> list[Candidate]:
    other_s = float(lower_median(facts.mean_s("other")))
    at_once_s = float(lower_median(per_round(facts.window, "other")).sum()) / max(1, facts.window.steps.size)
    in_turn = at_once_s < MOST * other_s  # then most of it is no jitter of what all do, and another finding
    other_s = at_once_s if in_turn else other_s
    if other_s < LEAST * facts.step_s or not is_work(facts.window, "other"):
        return []
    meets_in_each = np.unique(facts.window.round_of).size == facts.window.steps.size
    without: Removal = partial(without_shared if meets_in_each and not in_turn else without_common, phases=("other",))
    bounds: tuple[Removal, Removal] | None = (as_recorded, without)
    steps = _few_steps(facts)
    covered = explained_shares(facts.window.per_step("other"), facts.stalls.seconds)
    if covered.get(COLLECTION, 0.0) >= MOST:
        collected_s = facts.stalls.seconds[COLLECTION]
        without, bounds = partial(without_part, phase="other", gone_s=collected_s), None
        if facts.window.on_device:
            bounds = (without, partial(_fed, without=without))
    causes = [CAUSES[cause] for cause in covered]
    return [
        Candidate(
            rule="between-phases",
            kind="job",
            title=f"{facts.all_ranks('spend')} {show_time(other_s)} per step between the known phases"
            + (f": {', and '.join(causes)}" if causes else ""),
            remedy=joined("; ", *(against(cause, facts.start) for cause in covered))
            or mark_or_trace(facts.start, steps),
            evidence=(
                seconds("work outside the known phases, taken by at least half of the ranks", other_s, facts.span),
                share("of the step", other_s / facts.step_s, facts.span),
                *(() if steps is None else (_in_few(facts, steps),)),
                *(share(f"part of it in which {CAUSES[one]}", part, facts.span) for one, part in covered.items()),
            ),
            without=without,
            bounds=bounds,
            least_share=LEAST,
        )
    ]


def _few_steps(facts: Facts) -> NDArray[np.int64] | None:
    """The numbers of the steps that hold nearly all of it, if they are few."""
    used = ~facts.window.odd | facts.first
    common_s = lower_median(facts.window.per_step("other"))[used, None]
    long = in_few_steps(common_s, facts.window.wall_s[used].mean(axis=1))
    return None if long is None else facts.window.steps[used][long[:, 0]]


def _in_few(facts: Facts, steps: NDArray[np.int64]) -> Evidence:
    """The few ``steps`` that hold nearly all of it."""
    begins = ", in each of which an epoch begins" if facts.first[np.isin(facts.window.steps, steps)].all() else ""
    return count(f"steps that hold nearly all of it{begins}: {numbered(steps)}", int(steps.size), facts.span)


def _fed(window: Window, without: Removal) -> Window:
    """``window`` after ``without``, and no device waits for its host to issue work, as after a collection it does."""
    return without_pacing(without(window))
