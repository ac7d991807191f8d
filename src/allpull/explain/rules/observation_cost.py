"""Recording takes a noticeable part of each step.

What it is
    Very short steps, many collectives in each, or a slow file system under the run directory.

How it is found
    By the ranks' own measurement of the time that recording took: one percent of their steps, or more.

What it costs
    The replay without it.

What to do
    Record fewer steps (`allpull run --steps 100:200`), or put the run directory on a local disk (`--out`).

When it is wrong
    The measurement is of the recording thread; sampling in other processes, on other cores, is not included.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy_text import record_less
from allpull.replay.whatif.work import scaled
from allpull.units import percent

LEAST = 0.01  # of a step: what recording may cost at most


def find(facts: Facts) -> list[Candidate]:
    """The job, where recording takes too long."""
    part = facts.machine.recording_share
    other_s = float(np.mean(facts.mean_s("other")))
    if part is None or part < LEAST or other_s <= 0:
        return []
    recording_s = part * facts.step_s
    return [
        Candidate(
            rule="observation-cost",
            kind="job",
            title=f"Recording takes {percent(part, 1)} of each step",
            remedy=record_less(facts.start),
            evidence=(
                seconds("time of recording", recording_s, "the ranks' own measurement"),
                share("of the step", part, "the ranks' own measurement"),
            ),
            without=partial(scaled, phases=("other",), factor=max(0.0, 1 - recording_s / other_s)),
            least_share=LEAST,
        )
    ]
