"""How long ranks waited for a CPU, as the kernel counted it: the training thread step by step, or all threads.

The waiting of the training thread delayed the rank, so it is subtracted before ranks are compared: what is left is
their own work. Runs recorded without it have the counters of their hosts, which add up all threads of a rank and its
helper processes; these may have waited without delaying anything. Where accelerators compute, the thread only issues
work, and in a rehearsal it stands for an accelerator: there, too, only the counters are used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.hosts.machine import Machine
from allpull.replay.whatif.work import lower_median, shortened_by_step
from allpull.replay.window import Window

COMPUTING = ("copy", "forward", "backward", "optimizer", "host", "other")
"""Work of a rank between its loader and its collectives."""
CROWDED = 0.10  # of the time: other activity of a machine takes less
CROWDED_SUM = 0.25  # sum over all threads: those of Gloo wait without delaying anything, 13 % in healthy runs
CROWDED_MORE = 2.0  # times the waiting of the others: late ranks wait somewhat more for a CPU than others anyway


def is_work(window: Window, phase: str) -> bool:
    """Whether ``phase`` is a rank's own work: ``other`` is not where it also holds time in collectives."""
    return phase != "other" or all(gap.kind != "blocked in other" for gap in window.gaps)


def per_step(window: Window, phases: list[str] | tuple[str, ...]) -> Floats:
    """Seconds of ``phases`` together by step and rank, shape (steps, ranks)."""
    total = np.zeros((window.steps.size, window.ranks))
    for name in phases:
        total += window.per_step(name)
    return total


def is_known_per_step(window: Window, machine: Machine) -> bool:
    """Whether the waiting of the training thread is known step by step, and its time is the rank's."""
    return window.queued_s is not None and not machine.is_rehearsal and not window.on_device


def held_up(window: Window, machine: Machine) -> Floats | None:
    """How long at most the training thread had no CPU while it computed, s, (steps, ranks); None: not known.

    Waiting beyond its computation fell into collectives or its loader, from which it returned late.
    """
    if window.queued_s is None or not is_known_per_step(window, machine):
        return None
    held: Floats = np.minimum(window.queued_s, _computing(window))
    return held


def surely_held_up(window: Window, machine: Machine) -> Floats | None:
    """The same at least: waiting for a CPU beyond all time in which it did not compute, (steps, ranks)."""
    held_s = held_up(window, machine)
    if held_s is None or window.queued_s is None:
        return None
    elsewhere_s = np.maximum(window.wall_s - _computing(window), 0.0)
    surely: Floats = np.minimum(np.maximum(window.queued_s - elsewhere_s, 0.0), held_s)
    return surely


def slept_s(window: Window, machine: Machine) -> Floats | None:
    """How long at least each rank neither ran nor waited for a CPU while it computed, s per step, (ranks,).

    It waited for something else: a timer, a lock, a file. All CPU time of its process counts as time that its training
    thread ran. None: not known, or computation is not done by that thread.
    """
    held_s, ran_s = held_up(window, machine), ran_per_step_s(window, machine)
    if held_s is None or ran_s is None:
        return None
    slept: Floats = np.maximum((_computing(window) - held_s).mean(axis=0) - ran_s, 0.0)
    return slept


def ran_per_step_s(window: Window, machine: Machine) -> Floats | None:
    """The CPU time of each rank, all threads together, s per step, (ranks,); None: not known."""
    if machine.cpu_s is None:
        return None
    ran: Floats = machine.cpu_s * window.measured_s / max(1, window.steps.size)
    return ran


def _computing(window: Window) -> Floats:
    return per_step(window, [name for name in COMPUTING if is_work(window, name)])


def waiting_share(window: Window, machine: Machine) -> Floats | None:
    """Share of the time in which each rank was runnable without a CPU, (ranks,); None: not known."""
    held_s = held_up(window, machine)
    if held_s is None:
        return machine.queued_s
    share: Floats = held_s.sum(axis=0) / max(window.measured_s, float(held_s.sum(axis=0).max(initial=0.0)), 1e-9)
    return share


def crowded_share(window: Window, machine: Machine) -> float | None:
    """Share of the time in which at least half of the ranks were runnable without a CPU; None: not known.

    The counters of a host add up a rank's processes: there it is the mean of them. The ranks of a rehearsal share one
    machine, whose own contention says nothing about the cluster: None, too.
    """
    shares = waiting_share(window, machine)
    if shares is None or machine.is_rehearsal:
        return None
    return float(lower_median(shares)) / (1 if is_known_per_step(window, machine) else max(1, machine.started or 1))


def all_wait(window: Window, machine: Machine) -> bool:
    """Whether at least half of the ranks wait for a CPU for much of their time."""
    crowded = crowded_share(window, machine)
    least = CROWDED if is_known_per_step(window, machine) else CROWDED_SUM
    return crowded is not None and crowded >= least


def shortened(window: Window, gone_s: Mapping[int, float], evenly: Collection[int] = ()) -> Window:
    """The ranks of ``gone_s`` compute that many seconds per step less, whatever was removed from ``window`` before.

    Long steps are shortened by more than short ones; on ranks ``evenly``, which stall, all by the same.
    """
    own_s = per_step(window, COMPUTING)
    mean_s, kept = own_s.mean(axis=0), np.ones_like(own_s)
    for rank, seconds in gone_s.items():
        base_s = own_s[:, rank] if rank in evenly else np.full(own_s.shape[0], mean_s[rank])
        kept[:, rank] = np.maximum(0.0, 1 - np.divide(seconds, base_s, out=np.zeros_like(base_s), where=base_s > 0))
    return shortened_by_step(window, dict.fromkeys(COMPUTING, kept))


def is_crowded(rank: int, shares: Floats) -> bool:
    """Whether ``rank`` waits for a CPU for much of its time, and far more than the others."""
    usual = float(np.median(np.delete(shares, rank)))
    return bool(shares[rank] >= CROWDED and shares[rank] >= CROWDED_MORE * usual)
