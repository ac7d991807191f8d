"""The first batch of each epoch comes late: loader workers are started anew, and their queues are empty.

What it is
    `DataLoader` ends its workers with the epoch unless told otherwise; starting them, opening files and filling the
    queue takes seconds, in which nothing is trained. Short epochs pay it often.

How it is found
    By the time in `input` of steps tagged as the first of an epoch, against the median of the other steps.

What it costs
    The replay in which first batches come as fast as others; what other steps wait, such as those after an evaluation,
    stays.

What to do
    `DataLoader(persistent_workers=True)`, and a sampler that goes on over epochs where they are short.

When it is wrong
    Where the data set itself is made anew each epoch, or a shuffle buffer is filled, workers that stay do not help.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, count, seconds
from allpull.replay.whatif.work import without_first_batches
from allpull.units import show_time


def find(facts: Facts) -> list[Suspect]:
    """The job, where first batches take longer than others."""
    first = facts.first
    if not first.any() or first.all():
        return []
    slowest = facts.window.per_step("input").max(axis=1)
    more_s = np.maximum(slowest[first] - float(np.median(slowest[~first])), 0.0)
    per_step_s = float(more_s.sum()) / first.size
    if per_step_s <= 0:
        return []
    return [
        Suspect(
            rule="first-batch-stall",
            kind="job",
            title=f"The first batch of an epoch comes {show_time(float(more_s.mean()))} later than others",
            remedy="keep the workers: DataLoader(persistent_workers=True)",
            evidence=(
                seconds("what first batches cost, spread over all steps", per_step_s, facts.span),
                seconds("how much longer the slowest rank waits for a first batch", float(more_s.mean()), facts.span),
                count("epochs that began", int(first.sum()), facts.span),
            ),
            without=partial(without_first_batches, first=first),
        )
    ]
