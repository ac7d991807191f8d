"""Two ranks of which one takes longer in forward and the other in backward: they arrive together, and nobody waits."""

from __future__ import annotations

import numpy as np

from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import held_up
from allpull.explain.evidence.late.lateness import BY_SAMPLE, step_s
from allpull.units import percent, show_time

LEAST = 0.08  # of a step: healthy cores of one machine differ by nearly that much
USUALLY = 0.9  # of the steps: the same rank takes longer in a pass


def opposed_passes(facts: Facts) -> list[str]:
    """A note where that may hide two faults; whether it does, or forward only ends later on one rank, is not known.

    With a third rank the two would differ from it. On a device, one that waits earlier for its host ends forward later.
    Waiting for a CPU may fall into either pass.
    """
    window = facts.window
    is_compared = window.ranks == 2 and window.complete and not window.on_device  # nobody else may be last
    if not is_compared or facts.late.own_meetings or not window.steps.size:
        return []
    held_s = held_up(window, facts.machine)
    queued_s = 0.0 if held_s is None else float(held_s.mean(axis=0).max())
    later: dict[str, tuple[int, float]] = {}
    for name in BY_SAMPLE:
        seconds = window.per_step(name)
        longer_s = (seconds[:, 1] - seconds[:, 0])[~window.odd]
        rank = int(np.median(longer_s) > 0) if longer_s.size else 0
        beyond_s = longer_s if rank else -longer_s
        if not longer_s.size or np.mean(beyond_s > 0) < USUALLY:
            return []
        later[name] = rank, float(np.median(beyond_s))
    (first, forward_s), (other, backward_s) = later.values()
    hidden_s = min(forward_s, backward_s)
    if first == other or hidden_s - queued_s < LEAST * step_s(window):
        return []
    note = (
        f"rank {first} takes {show_time(forward_s)} per step longer than rank {other} in forward, and rank {other} "
        f"{show_time(backward_s)} longer in backward: as far as they hide each other, nobody waits; if these are two "
        "faults, and forward does not only end later in the program of one rank, mending both saves up to "
        f"{show_time(hidden_s)}, {percent(hidden_s / step_s(window))} of a step, more than mending one"
    )
    return [note]
