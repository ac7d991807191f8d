"""Single steps in which one rank comes so late that it costs much of a run: too few to tell more of them to come."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.units import percent, show_time

LEAST = 0.03  # of the time of all steps
STEPS = 3.0  # as long as so many usual steps: less is jitter
MOST = 3  # steps: what happens more often is for the rules


def lone_delays(facts: Facts, named: Collection[int]) -> list[str]:
    """A note on each of the longest delays that one rank cost the others, but for ranks that are ``named`` anyway."""
    window = facts.window
    if facts.blame is None or not window.steps.size:
        return []
    lost_s = facts.blame.delay_s.max(axis=1)
    least_s = max(LEAST * window.measured_s, STEPS * float(np.median(window.wall_s)))
    large = np.flatnonzero((lost_s > least_s) & ~window.odd)
    if large.size > MOST:
        return []
    late = [(int(row), int(facts.blame.late_s[row].argmax())) for row in large]
    return [
        f"in step {window.steps[row]:,} the others waited {show_time(float(lost_s[row]))} for rank {rank}, "
        f"{percent(float(lost_s[row]) / window.measured_s)} of the time of these steps; so few delays do not tell what "
        "a longer run loses"
        for row, rank in late
        if rank not in named
    ]
