"""To record a step costs the ranks a noticeable part of it.

What it is
    Very short steps, many collectives in each, or a slow file system under the run directory.

How it is found
    By the ranks' own measurement of what recording took: one percent of their steps, or more.

What it costs
    The replay without it.

What to do
    Record fewer steps (`allpull run --steps 100:200`), or put the run directory on a local disk (`--out`).

When it is wrong
    The measurement is that of the thread that records; what sampling costs beside it, on other cores, is not in it.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, seconds, share
from allpull.replay.whatif.work import scaled
from allpull.units import percent

LEAST = 0.01  # of a step: what recording may cost at most, by its own rule


def find(facts: Facts) -> list[Suspect]:
    """The job, where recording takes more than it may."""
    part = facts.machine.recording_share
    other_s = float(np.mean(facts.mean_s("other")))
    if part is None or part < LEAST or other_s <= 0:
        return []
    recording_s = part * facts.step_s
    return [
        Suspect(
            rule="observation-cost",
            kind="job",
            title=f"Recording takes {percent(part, 1)} of a step",
            remedy="record fewer steps (allpull run --steps 100:200), or on a local disk (--out)",
            evidence=(
                seconds("what recording takes", recording_s, "the ranks' own measurement"),
                share("of a step", part, "the ranks' own measurement"),
            ),
            without=partial(scaled, phases=("other",), factor=max(0.0, 1 - recording_s / other_s)),
            least_share=LEAST,
        )
    ]
