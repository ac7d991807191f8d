"""Devices that their hosts pace: they compute no faster than the hosts issue work."""

from __future__ import annotations

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.outliers import outliers
from allpull.replay.whatif.work import lower_median, paced_share
from allpull.replay.window import Bools, Window

PACED = 0.5  # of the computation: a host that waits for its device in each step, but issues twice as fast, has less


def paced_ranks(window: Window) -> Bools:
    """Which ranks have devices that are paced for most of their computation, (ranks,)."""
    share = paced_share(window)
    paced: Bools = np.zeros(window.ranks, dtype=np.bool_) if share is None else share.mean(axis=0) >= PACED
    return paced


def is_paced(window: Window) -> bool:
    """Whether at least half of the ranks are paced."""
    share = paced_share(window)
    return share is not None and bool(share.size) and float(lower_median(share.mean(axis=0))) >= PACED


def not_only_paced(window: Window) -> Bools:
    """Which ranks may be called slow, (ranks,): not those that are paced and whose hosts issue as fast as the others.

    Hosts that issue without waiting for each other drift apart. The devices of those that are ahead wait in the
    reductions, find the next work already issued, and compute it faster than the last one, which never catches up.
    """
    named = ~paced_ranks(window)
    if window.issued_s is not None and not named.all():
        named[[one.rank for one in outliers(window.issued_s).ranks]] = True
    return named


def computed_s(window: Window, seconds: Floats) -> Floats:
    """``seconds`` of computation (steps, ranks) without what was paced."""
    share = paced_share(window)
    return seconds if share is None else seconds * (1.0 - share)
