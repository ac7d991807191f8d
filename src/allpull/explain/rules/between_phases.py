"""All ranks spend time between the phases of a step, and the records do not show on what.

What it is
    Logging, metrics, plots, a progress bar, hooks, garbage collection, or a phase of the program that is not marked.

How it is found
    By the phase `other`: what remains of a step without all known phases and collectives.

What it costs
    At most what the replay without it saves, as far as ranks have it in common: some of this work is necessary. What
    one rank takes longer than the others is `slow-rank`.

What to do
    Find out what it is: mark it (`with allpull.marks.phase("metrics"):`), or look at a profiler window
    (`allpull run --trace`). Then do it less often, or in a thread.

When it is wrong
    Where collectives could not be matched across ranks, `other` includes them: a note says so, and this rule reports
    nothing. Work of a hook or callback inside forward or backward is not included.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, as_recorded, seconds, share
from allpull.explain.evidence.cpu_waiting import is_work
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy_text import mark_or_trace
from allpull.replay.whatif.work import lower_median, without_common
from allpull.units import show_time

LEAST = 0.05  # of a step: any loop does some work between its phases


def find(facts: Facts) -> list[Candidate]:
    """The job, where all ranks spend time outside the known phases."""
    other_s = float(lower_median(facts.mean_s("other")))
    if other_s < LEAST * facts.step_s or not is_work(facts.window, "other"):
        return []
    without = partial(without_common, phases=("other",))
    return [
        Candidate(
            rule="between-phases",
            kind="job",
            title=f"All ranks spend {show_time(other_s)} per step between the known phases",
            remedy=mark_or_trace(facts.start),
            evidence=(
                seconds("work outside the known phases, taken by at least half of the ranks", other_s, facts.span),
                share("of the step", other_s / facts.step_s, facts.span),
            ),
            without=without,
            bounds=(as_recorded, without),
            least_share=LEAST,
        )
    ]
