"""Time goes by between the phases of a step, on all ranks, and nothing says on what.

What it is
    Logging, metrics, plots, a progress bar, hooks, garbage collection, or a phase of the program that nobody marked.

How it is found
    By what is left of a step when all known phases and collectives are taken from it: the phase `other`.

What it costs
    At most what the replay without it saves, as far as ranks have it in common: some of it has to be done. What one
    rank takes longer than the others is `slow-rank`.

What to do
    Find out what it is: mark it (`with allpull.marks.phase("metrics"):`), or look at a profiler window
    (`allpull run --trace`). Then do it less often, or on a thread.

When it is wrong
    Where collectives could not be matched across ranks, `other` holds them, too: then a note says so, and this rule is
    silent. What a hook or a callback does inside forward or backward is not seen here.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.evidence.cpu_waiting import is_work
from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, as_recorded, seconds, share
from allpull.replay.whatif.work import lower_median, without_common
from allpull.units import show_time

LEAST = 0.05  # of a step: a loop has to do something between its phases


def find(facts: Facts) -> list[Suspect]:
    """The job, where all ranks spend time in no known phase."""
    other_s = float(lower_median(facts.mean_s("other")))
    if other_s < LEAST * facts.step_s or not is_work(facts.window, "other"):
        return []
    without = partial(without_common, phases=("other",))
    return [
        Suspect(
            rule="between-phases",
            kind="job",
            title=f"{show_time(other_s)} a step go by between the known phases, on all ranks",
            remedy='mark what happens there (with allpull.marks.phase("metrics"):) or look at it: allpull run --trace',
            evidence=(
                seconds("work in no known phase, what at least half of the ranks take", other_s, facts.span),
                share("of a step", other_s / facts.step_s, facts.span),
            ),
            without=without,
            bounds=(as_recorded, without),
            least_share=LEAST,
        )
    ]
