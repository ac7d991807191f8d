"""How much of the computation of a rank goes with the size of its batches: padded texts, images of many sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.cpu_waiting import COMPUTING, held_up, is_work, per_step
from allpull.replay.window import Bools, Window

VARY = 0.05  # of the mean size: batches of one size, but for the last of an epoch, vary less
EXPLAINED = 0.5  # of the variance between ranks of one step: below it, something else makes ranks late

SURELY = 25  # t² of the slope: one such slope in a million by chance alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchWork:
    """By how much each rank computes longer than the mean rank of the step because of its batch, s, (steps, ranks).

    ``by_phase``: the same of each phase. ``share``: of the variance between ranks that the size of batches explains.
    ``sizes`` (steps, ranks): of batches, in elements, or in samples where all of these have one size.
    """

    excess_s: Floats
    by_phase: Mapping[str, Floats]
    share: float
    sizes: Floats


def batch_work(window: Window, machine: Machine) -> BatchWork | None:
    """The work that goes with the size of batches; None where sizes are equal, not known, or explain too little.

    Within each step, sizes and computing times are compared with their mean over ranks, so that what all ranks have in
    common (warm clocks, a slow network) does not count; one line through the origin fits all steps.
    """
    if window.ranks < 2:
        return None
    sizes = _sizes(window)
    known: Bools = np.asarray(np.isfinite(sizes).all(axis=1))
    used: Bools = known & ~window.odd
    if used.sum() < MIN_POINTS:
        return None
    held_s = held_up(window, machine)
    own_s = per_step(window, COMPUTING) - (0.0 if held_s is None else held_s)
    more, longer_s = _varying(sizes, used), _varying(own_s, used)
    squares = float((more**2).sum())
    if _beyond_mean(sizes)[used].std() < VARY * float(sizes[used].mean()) or squares <= 0:
        return None
    slope = float((more * longer_s).sum()) / squares
    residual_s = longer_s - slope * more
    total = float((longer_s**2).sum())
    share = 1 - float((residual_s**2).sum()) / total if total > 0 else 0.0
    freedom = (longer_s.shape[0] - 1) * (window.ranks - 1)
    if slope <= 0 or share < EXPLAINED or share * freedom < SURELY * (1 - share):
        return None
    beyond = np.where(known[:, None], _beyond_mean(sizes), 0.0)
    phases = {name: window.per_step(name) for name in COMPUTING if is_work(window, name)}
    slopes = {name: float((more * _varying(seconds, used)).sum()) / squares for name, seconds in phases.items()}
    by_phase = {name: max(0.0, one) * beyond for name, one in slopes.items()}
    return BatchWork(excess_s=slope * beyond, by_phase=by_phase, share=share, sizes=sizes)


def _sizes(window: Window) -> Floats:
    """The size of each batch, (steps, ranks), in elements, or in samples: NaN where it is not known.

    A rank that has more samples than others on the whole is late for another reason; what these vary by is left.
    """
    if window.elements is not None:
        return window.elements
    counted = np.isfinite(window.samples)
    usual = np.where(counted, window.samples, 0.0).sum(axis=0) / np.maximum(counted.sum(axis=0), 1)
    alike: Floats = window.samples * np.divide(usual.mean(), usual, out=np.full_like(usual, np.nan), where=usual > 0)
    return alike


def _varying(values: Floats, used: Bools) -> Floats:
    """``values`` of the steps ``used``, beyond the mean rank and as far as that varies.

    A rank that is always slower is so for another reason.
    """
    beyond = _beyond_mean(values)[used]
    varying: Floats = beyond - np.median(beyond, axis=0)
    return varying


def _beyond_mean(values: Floats) -> Floats:
    """``values`` less their mean over ranks, (steps, ranks)."""
    beyond: Floats = values - values.mean(axis=1, keepdims=True)
    return beyond
