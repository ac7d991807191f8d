"""Which ranks stand out from the others again and again, and not only because somebody has to be last.

The excess of a rank in a step is its work minus the median of the other ranks'. Where ranks are alike, and only chance
slows them, it does not matter which is called which: so the labels are shuffled, block of steps by block of steps, and
the largest mean excess of a rank is looked at again (a permutation test; Good 2005, "Permutation, Parametric and
Bootstrap Tests of Hypotheses", §3). It needs no model of the noise: one stall of half a second, which is half a second
on whatever rank it falls, makes nobody stand out. It may hide somebody, though, so the same is asked of excesses that
are cut where they leave what is usual.

Ranks that stand out are set aside, their work replaced by the median of the others', and the rest is looked at anew:
what remains is the noise floor of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from allpull.analyse.grid import Floats
from allpull.analyse.others import beyond_others
from allpull.analyse.statistics import MIN_POINTS, ratio_interval
from allpull.schema.results import Interval

SHUFFLES = 200  # of the labels: the spread of their largest mean is then known to 5 %
MAX_BLOCKS = 64  # of consecutive steps that keep their labels; 64 of them tell as much as 1,000 steps do
MIN_BLOCK = 2  # steps: what slows a rank often lasts for more than one
DEVIATIONS = 4.0  # above the mean of shuffled runs: one healthy run in some thousands reaches it
STEADY_SHARE = 0.5  # of its mean excess: a rank that is as often early as late has less
USUAL = 2.0  # times the excess of the last rank in the median step: what is beyond is a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Outstanding:
    """One rank that stands out by ``size`` (s a step, mean and 95 % interval).

    ``steady``: it is late on the whole; else it is early as well, and varies more than the others do.
    """

    rank: int
    size: Interval
    steady: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """The ranks that stand out, largest first, and what of it is chance: ``floor_s``, in s a step.

    ``floor_s`` is infinite where there are too few steps or ranks to tell.
    """

    ranks: tuple[Outstanding, ...]
    floor_s: float


def standing_out(work_s: Floats, *, seed: int = 0) -> Standing:
    """The ranks whose ``work_s`` (steps, ranks), in s, is above that of the others; at most half of them."""
    steps, ranks = work_s.shape
    found: list[Outstanding] = []
    rest = np.arange(ranks)
    floor_s = float("inf")
    while steps >= MIN_POINTS and rest.size > 1:
        excess = beyond_others(work_s[:, rest].astype(np.float64))
        above, floor_s = _above(excess, np.random.default_rng(seed))
        above = above[: ranks // 2 - len(found)]
        if not above:
            break
        found += [_outstanding(int(rest[place]), series) for place, series in above]
        rest = np.delete(rest, [place for place, _ in above])
    found.sort(key=lambda one: -one.size.value)
    return Standing(ranks=tuple(found), floor_s=floor_s)


def by_phase(phases: Mapping[str, Floats], rank: int) -> dict[str, float]:
    """By how much ``rank`` exceeds the others in each phase, s a step, the largest first; phase → (steps, ranks)."""
    excess = {name: float(beyond_others(seconds)[:, rank].mean()) for name, seconds in phases.items()}
    return dict(sorted(excess.items(), key=lambda one: -one[1]))


def mean_interval(series: Floats) -> Interval:
    """The mean of ``series`` (steps,) with its 95 % interval."""
    return ratio_interval(series, np.ones_like(series))


def _above(excess: Floats, rng: np.random.Generator) -> tuple[list[tuple[int, Floats]], float]:
    """Who is above what chance gives, the latest first, each with its excess; and what chance gives.

    The excess is the cut one where that says most of it, so that a stall of the whole machine enlarges nobody.
    """
    usual_s = USUAL * float(np.median(np.maximum(excess.max(axis=1), 0.0)))
    whole, cut = np.maximum(excess, 0.0), np.clip(excess, 0.0, usual_s)
    floors = [_shuffled(late, rng) for late in (whole, cut)]
    means = [late.mean(axis=0) for late in (whole, cut)]
    out = (means[0] > floors[0]) | (means[1] > floors[1])
    found = []
    for place in np.argsort(-means[0], kind="stable"):
        if out[place]:
            is_steady = means[1][place] > floors[1] and means[1][place] >= STEADY_SHARE * means[0][place]
            series = excess[:, place]
            found.append((int(place), np.clip(series, -usual_s, usual_s) if is_steady else series))
    return found, min(floors)


def _outstanding(rank: int, excess: Floats) -> Outstanding:
    late = np.maximum(excess, 0.0)
    steady = bool(excess.mean() >= STEADY_SHARE * late.mean())
    return Outstanding(rank=rank, size=mean_interval(excess if steady else late), steady=steady)


def _shuffled(late: Floats, rng: np.random.Generator) -> float:
    """The largest mean of a rank that chance gives: mean and ``DEVIATIONS`` standard deviations over shuffles."""
    steps = late.shape[0]
    blocks = min(MAX_BLOCKS, max(1, steps // MIN_BLOCK))
    starts = np.linspace(0, steps, blocks, endpoint=False).astype(np.intp)
    sums = np.add.reduceat(late, starts, axis=0)
    largest = np.empty(SHUFFLES)
    for shuffle in range(SHUFFLES):
        largest[shuffle] = rng.permuted(sums, axis=1).sum(axis=0).max() / steps
    return float(largest.mean() + DEVIATIONS * largest.std())
