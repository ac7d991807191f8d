"""Devices that their hosts pace: they compute no faster than the hosts issue work."""

from __future__ import annotations

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Removal
from allpull.explain.evidence.late.outliers import outliers
from allpull.replay.useful import COMPUTE
from allpull.replay.whatif.work import compute_s, lower_median, paced_share, shortened_by_step
from allpull.replay.window import Bools, Window

PACED = 0.5  # of the computation: a host that waits for its device in each step, but issues twice as fast, has less
STARVED = 0.04  # of a step without a batch: the device then begins each step together with its host
SETS_THE_PACE = 0.95  # of the longest computation
STARVED_PACED = 0.9  # of its computation: if its host issues faster than it computes, it falls behind during the step


def paced_ranks(window: Window) -> Bools:
    """Which ranks have devices that are paced for most of their computation, (ranks,)."""
    share = paced_share(window)
    if share is None:
        return np.zeros(window.ranks, dtype=np.bool_)
    paced: Bools = share.mean(axis=0) >= _least(window)
    return paced


def pace_setters(window: Window) -> Bools:
    """The ranks that are paced and let all others wait for them, (ranks,); none where a slow host is the reason.

    That is every paced rank where at least half of the ranks are. Else it is a rank that computes longest: the hosts of
    the others once got ahead of it, while it evaluated or saved, say, and stay ahead, because its reductions come last.
    """
    share = paced_share(window)
    if share is None or not share.size:
        return np.zeros(window.ranks, dtype=np.bool_)
    paced = paced_ranks(window)
    if lower_median(share.mean(axis=0) - _least(window)) >= 0:
        return paced
    computed_s = np.sum([window.per_step(name) for name in COMPUTE], axis=0).mean(axis=0)
    setters: Bools = paced & not_slow_to_issue(window) & (computed_s >= SETS_THE_PACE * computed_s.max())
    return setters


def not_slow_to_issue(window: Window) -> Bools:
    """Which ranks have hosts that issue a step no more slowly than those of the others, (ranks,)."""
    named = np.ones(window.ranks, dtype=np.bool_)
    if window.issued_s is not None:
        named[[one.rank for one in outliers(window.issued_s).ranks]] = False
    return named


def _least(window: Window) -> Floats:
    """The least paced share of computation of a rank whose host is slower than its device, (ranks,)."""
    starved = window.per_step("input").mean(axis=0) >= STARVED * window.wall_s.mean(axis=0)
    return np.where(starved, STARVED_PACED, PACED)


def fed_in_time(window: Window, without: Removal) -> Window:
    """``window`` after ``without``, which has batches come in time, and the most that devices may gain beyond that.

    After a late batch a device begins its phases together with its host, and may wait for it inside them as well. With
    batches in time its host is ahead, but still has to issue each step.
    """
    ahead_s = np.inf if window.issued_s is None else np.maximum(compute_s(window) - window.issued_s, 0.0)
    share = paced_share(window, ahead_s)
    if share is None:
        return without(window)
    starved = window.per_step("input") >= STARVED * window.wall_s
    return without(shortened_by_step(window, dict.fromkeys(COMPUTE, 1.0 - np.where(starved, share, 0.0))))


def may_be_starved(window: Window, rank: int, excess_s: float) -> bool:
    """Whether waiting for its host after late batches explains that ``rank`` computes ``excess_s`` longer per step.

    What the host does between the batch and forward, and then the issuing of forward, delay an idle device.
    """
    waits_s = for_host_s(window)
    if waits_s is None or window.ranks < 2:
        return False
    starved_s = np.where(window.per_step("input") >= STARVED * window.wall_s, waits_s, 0.0).mean(axis=0)
    return bool(excess_s <= starved_s[rank] - np.median(np.delete(starved_s, rank)))


def for_host_s(window: Window) -> Floats | None:
    """How long at most each device waited for its host, s, (steps, ranks); None: not known, or CPUs compute."""
    if window.paced_s is None:
        return None
    waits_s: Floats = window.paced_s + window.per_step("other") + window.per_step("host")
    return waits_s


def not_only_paced(window: Window) -> Bools:
    """Which ranks may be called slow, (ranks,): not those that are paced and whose hosts issue as fast as the others.

    Hosts that issue without waiting for each other drift apart. The devices of those that are ahead wait in the
    reductions, find the next work already issued, and compute it faster than the last one, which never catches up.
    """
    paced = paced_ranks(window)
    return ~paced if window.issued_s is None else ~paced | ~not_slow_to_issue(window)


def at_own_pace(window: Window, own_s: Floats) -> Floats:
    """``own_s`` (steps, ranks), with computation as long as the slower of host and device takes, where any is paced.

    How long a paced device passes over its work depends on how far its host is ahead (``not_only_paced``): that varies
    between ranks and steps although no rank is late.
    """
    if window.issued_s is None or window.paced_s is None or not paced_ranks(window).any():
        return own_s
    passed_s = compute_s(window)
    at_pace: Floats = own_s - passed_s + np.maximum(window.issued_s, passed_s - window.paced_s)
    return at_pace


def computed_s(window: Window, seconds: Floats) -> Floats:
    """``seconds`` of computation (steps, ranks) without what was paced."""
    share = paced_share(window)
    return seconds if share is None else seconds * (1.0 - share)
