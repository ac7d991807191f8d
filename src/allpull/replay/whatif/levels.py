"""What-if questions about levels of work: as at first, or without what ranks share; other losses stay as they are.

Each rank is compared with itself: a rank that is late by a constant time takes that time before and after the change,
and one that is slow by a factor changes by more. So neither is scaled; its change of level is subtracted. Only a rank
whose level changes by a larger factor than that of all ranks, and by more than chance, becomes slower by itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from allpull.analyse.statistics import long_run_variance
from allpull.analyse.steps.grid import Floats
from allpull.replay.whatif.work import lower_median, shortened_by_step
from allpull.replay.window import Window

USUAL = 1.5  # times the median of neighbours: stalls beyond it do not tilt a line
NEIGHBOURS = 10  # steps with a median of their own: a line rises little in so many
JITTER_SDS = 4.0  # standard deviations: what deviates by more is a stall or a pause, which does not scale with a level
OWN_ERRORS = 4.0  # standard errors: by as much, a rank's change is larger than that of all by itself
MIN_STEPS = 2  # one alone has no change
QUARTILE_SD = 0.6745  # of a normal distribution, from its median
LEVEL_SDS = 2.0  # standard deviations: what deviates by more tells nothing of a level

Cuts = tuple[int, ...] | None
"""The rows, ascending, from each of which on there is another level; None: there is a line through all of them."""


def as_before(window: Window, cuts: Cuts, phases: Collection[str], errors: float = 0.0) -> Window:
    """Ranks take as long in ``phases`` as they usually did before the first of ``cuts``, each by its own level.

    Their jitter scales with their level, and what exceeds it stays: stalls, and pauses of one rank. ``cuts`` None: they
    took longer little by little, and take as long as at first. ``errors``: by how many standard errors the changes of
    level are larger than estimated; below 0: smaller.
    """
    kept: dict[str, Floats] = {}
    for name in phases:
        if name in window.work:
            seconds = window.per_step(name)
            left_s = np.maximum(seconds - _risen_s(seconds, cuts, errors), 0.0)
            kept[name] = np.divide(left_s, seconds, out=np.ones_like(seconds), where=seconds > 0)
    return shortened_by_step(window, kept)


def without_shared(window: Window, phases: Collection[str]) -> Window:
    """What ranks share in ``phases`` is gone, with its jitter: the most that can end with it.

    As in ``without_common``, what a rank takes beyond the lower median rank stays, but only where it does so in most
    steps, by more than its jitter, or pauses. Jitter alone makes some rank the last in each step, and ends with the
    work that varies.
    """
    kept: dict[str, Floats] = {}
    for name in phases:
        if name in window.work:
            seconds = window.per_step(name)
            beyond_s = seconds - lower_median(seconds)[:, None]
            usual_s = np.median(beyond_s, axis=0)
            sd_s = _sd_s(seconds)
            paused_s = np.maximum(beyond_s - usual_s - JITTER_SDS * sd_s, 0.0)
            longer_s = np.where(usual_s > sd_s, usual_s, 0.0)
            left_s = np.clip(longer_s + paused_s, 0.0, np.maximum(beyond_s, 0.0))
            kept[name] = np.divide(left_s, seconds, out=np.zeros_like(seconds), where=seconds > 0)
    return shortened_by_step(window, kept)


def levels(series: Floats, cuts: Cuts) -> Floats:
    """The level of ``series`` (steps, …) at each step, between ``cuts`` or along a line.

    It is the mean of what deviates from the median by no more than usual, so that stalls and pauses do not move it.
    """
    steps = len(series)
    if steps < MIN_STEPS:
        return series
    if cuts is not None:
        parts = [np.broadcast_to(_level(part), part.shape) for part in np.split(series, cuts) if len(part)]
        return np.concatenate(parts)
    place = np.arange(steps)
    capped = without_stalls(series)
    first, slope = np.polynomial.polynomial.polyfit(place, capped.reshape(steps, -1), 1)
    return np.asarray(first + slope * place.reshape(-1, 1)).reshape(series.shape)


def without_stalls(series: Floats) -> Floats:
    """``series`` (steps, …) with what is beyond ``USUAL`` times the median of its neighbours cut off."""
    parts = np.array_split(series, max(1, len(series) // NEIGHBOURS))
    return np.concatenate([np.minimum(part, USUAL * np.median(part, axis=0)) if len(part) else part for part in parts])


def _level(series: Floats) -> Floats:
    """One level of ``series`` (steps, …)."""
    median = np.median(series, axis=0)
    level: Floats = median + _jitter(series - median, LEVEL_SDS).mean(axis=0)
    return level


def _jitter(deviations: Floats, sds: float) -> Floats:
    """``deviations`` (steps, …), of which no more than ``sds`` standard deviations count."""
    most = sds * _sd_s(deviations)
    clipped: Floats = np.clip(deviations, -most, most)
    return clipped


def _sd_s(series: Floats) -> Floats:
    """Standard deviation of the jitter of ``series`` (steps, …), by its lower half: delays do not count."""
    quarter, middle = np.quantile(series, [0.25, 0.5], axis=0)
    return np.asarray((middle - quarter) / QUARTILE_SD)


def _risen_s(seconds: Floats, cuts: Cuts, errors: float) -> Floats:
    """By how much ``seconds`` (steps, ranks) are longer because the level of all ranks rose; at least 0."""
    level_s = levels(seconds, cuts)
    common_s = levels(lower_median(seconds), cuts)
    first = 0 if cuts is None else cuts[0]
    jitter_s = _jitter((seconds - level_s)[first:], JITTER_SDS)
    error_s = _errors_s(jitter_s, cuts, len(seconds))
    ratio = np.divide(common_s, common_s[0], out=np.ones_like(common_s), where=common_s[0] > 0)[first:, None]
    own_s, shared_s = (level_s - level_s[0])[first:], level_s[0] * (ratio - 1)
    change_s = np.where(own_s - shared_s > OWN_ERRORS * error_s, shared_s, own_s) + errors * error_s
    level_s = np.maximum(level_s[first:], 0.0)
    scaled = np.divide(jitter_s, level_s, out=np.zeros_like(level_s), where=level_s > 0)
    risen_s = np.zeros_like(seconds)
    risen_s[first:] = np.maximum(np.clip(change_s, 0.0, level_s) * (1 + scaled), 0.0)
    return risen_s


def _errors_s(jitter_s: Floats, cuts: Cuts, steps: int) -> Floats:
    """Standard errors of the changes of levels, around which ``jitter_s`` (rows, ranks) is, by row and rank.

    Of a line it is that of its slope times the way from its first step (Draper & Smith 1998, §1.4).
    """
    sd_s = np.sqrt([max(long_run_variance(series), float(series.var())) for series in jitter_s.T])
    if cuts is None:
        return math.sqrt(12 / steps) * np.arange(steps)[:, None] / steps * sd_s
    lengths = np.diff([*cuts, steps])
    errors: Floats = np.sqrt(1 / cuts[0] + 1 / np.repeat(lengths, lengths))[:, None] * sd_s
    return errors
