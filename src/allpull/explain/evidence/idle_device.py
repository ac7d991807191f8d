"""Devices that are idle while nothing is waited for: their hosts issue work meanwhile, or do something else."""

from __future__ import annotations

from allpull.explain.evidence.facts import Facts
from allpull.replay.whatif.work import lower_median

LEAST = 0.05  # of a step: the best programs have some gaps between kernels
MOSTLY = 0.5  # of the idle time: hosts that issue forward, backward and optimizer for less than that do something else


def idle_s(facts: Facts) -> float:
    """How long devices are idle, on at least half of the ranks, s per step; 0, if that is too short to matter."""
    seconds = float(lower_median(facts.mean_s("host")))
    return seconds if seconds >= LEAST * facts.step_s else 0.0


def issued_s(facts: Facts) -> float | None:
    """How long hosts issue forward, backward and optimizer, on at least half of the ranks, s per step; None: unknown.

    For no longer than that a device is idle because its host issues work.
    """
    issued = facts.window.issued_s
    if issued is None or not issued.any():
        return None
    return float(lower_median(issued.mean(axis=0)))


def hosts_do_other_work(facts: Facts) -> bool:
    """Whether most of the idle time passes while hosts do not issue work."""
    issuing_s = issued_s(facts)
    return issuing_s is not None and issuing_s < MOSTLY * idle_s(facts)
