"""Devices that are idle while nothing is waited for: their hosts issue work meanwhile, or do something else.

When in a step a host issues is not recorded, but for how long it does, I. For no longer than that is a device idle
because of it; and of that time it can have had work only for as long as it had any, D::

    max(0, I − D) ≤ idle while the host issues ≤ min(idle, I)

Where kernels are short, the device computes them, C, while the host issues the next ones, and is idle for I − C of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from allpull.explain.evidence.facts import Facts
from allpull.replay.whatif.work import compute_s, lower_median

LEAST = 0.05  # of a step: the best programs have some gaps between kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleDevice:
    """How long devices are idle, on at least half of the ranks, s per step, and their hosts issue work.

    ``least_s``, ``most_s`` and ``usual_s``: for how long both at once, the last if it computes only meanwhile.
    """

    idle_s: float
    issued_s: float
    least_s: float
    most_s: float
    usual_s: float


def idle_device(facts: Facts) -> IdleDevice:
    """That of a run; where it is not known how long hosts issue, they do so all the time."""
    idle_s, issued = float(lower_median(facts.mean_s("host"))), facts.window.issued_s
    if issued is None or not issued.any():
        return IdleDevice(idle_s=idle_s, issued_s=idle_s, least_s=idle_s, most_s=idle_s, usual_s=idle_s)
    issued_s = float(lower_median(issued.mean(axis=0)))
    has_work_s = facts.step_s - idle_s - float(lower_median(facts.mean_s("input")))
    computes_s = float(lower_median(compute_s(facts.window).mean(axis=0)))
    most_s = min(idle_s, issued_s)
    least_s = min(max(0.0, issued_s - has_work_s), most_s)
    usual_s = min(max(least_s, issued_s - computes_s), most_s)
    return IdleDevice(idle_s=idle_s, issued_s=issued_s, least_s=least_s, most_s=most_s, usual_s=usual_s)
