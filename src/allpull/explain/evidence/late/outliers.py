"""Which ranks stand out from the others repeatedly, and not only because some rank has to be last.

There are four tests, and a rank stands out by any. Their null hypothesis is equal ranks with random delays.

Steadily late: in each step the work of a rank minus the mean of the others' is zero on average, and its mean over
steps, without the largest and smallest tenth of them, follows Student's t (Yuen & Dixon 1973, Biometrika 60: a stall
then counts no more than its neighbouring step). A rank is compared with its own spread alone, so a fault does not hide
itself, and two ranks and eight steps suffice: of two ranks a slow one is found in half of all runs where it is late by
4 standard deviations of a step at 10 steps, by 2 at 20, and in 19 of 20 runs by 12 and 5. Consecutive steps are
correlated: their autocorrelation ρ, corrected for its bias in short series (Kendall 1954, Biometrika 41), widens
the error by √((1 + ρ)/(1 − ρ)). One run in ten thousand gives a false alarm where steps are independent, and five to
twelve in a thousand where ρ is 0.6 and there are no more than 20 of them; in rehearsals it is −0.3.

Late in some steps: the labels of ranks are shuffled, block of steps by block of steps, and the largest mean excess of a
rank over the median of the others is computed again (a permutation test; Good 2005, "Permutation, Parametric and
Bootstrap Tests of Hypotheses", §3). It needs no model of the noise: a single stall of half a second
makes no rank stand out, whichever it falls on. It may hide a rank, though, so the test is repeated with excesses that
are clipped at the usual range. The fault itself is part of what is shuffled: with two ranks, 25 steps are needed.
Blocks are short, so consecutive steps with ρ = 0.6 let some rank stand out in 4 runs of 100 with 4 ranks and in 8 with
8; such a rank was later than the others in those steps, and has to cost its share of them to be reported.

Late at equal intervals: what a program does on one rank in every n-th step, such as logging or saving, pauses it there
and nowhere else. Too few pauses for shuffled labels are still no accident if each n-th step has one: of the 2.6 million
ways to choose four of 90 steps, 134 do. Where no other rank pauses, they also fall on one of N ranks by chance in 1 of
N³ cases only. Where more than half of the ranks do, they pause in turn, and none stands out.
The other tests leave such pauses out.

Late for a while: a rank that is late in nine of ten steps from one change of its level to the next, or to the last
step, at least ``SHORTEST`` of them, is no accident either. Labels that are shuffled tell nothing of so few steps of
many, and the trimmed mean leaves them out.

Ranks that stand out are removed, and the others are tested again: what remains is the noise floor of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from allpull.analyse.course import OVER, SHORTEST, course, when_there
from allpull.analyse.statistics import MIN_BLOCKS, MIN_POINTS, ratio_interval, steps_per_draw
from allpull.analyse.steps.grid import Floats
from allpull.analyse.student_t import quantile
from allpull.explain.evidence.late.jitter import QUARTILE_SD
from allpull.explain.evidence.late.whiles import at_once, has_room
from allpull.replay.leave_one_out import beyond_others
from allpull.replay.spread import ratio
from allpull.replay.window import Bools
from allpull.schema.results import Interval

SELDOM = 1e-4  # false alarms of the t test, over all ranks of a run: one in ten thousand runs
TRIMMED = 0.1  # of the steps, at either end: one stall in ten steps moves nothing
MIN_FREEDOM = MIN_BLOCKS - 1  # of Student's t, which says nothing with less
ROUNDING = 1e-9  # of the work: what sums of equal numbers differ by is below it
SHUFFLES = 200  # of the labels: gives the spread of their largest mean to 5 %
AT_ONCE = 16_384  # delays that are shuffled in one call: many shuffles of few ranks, all within a CPU's cache
MAX_BLOCKS = 64  # of consecutive steps that keep their labels; 64 of them show as much as 1,000 steps
MIN_BLOCK = 2  # steps: a delay often lasts for more than one
DEVIATIONS = 4.0  # above the mean of shuffled runs: one to three of 1,000 runs of independent steps reach it
FEW_DRAWS = 4.5
ALIKE_STEPS = 12.0
INDEPENDENT = 2.0  # steps that count as one draw, at most
STEADY_SHARE = 0.5  # of its mean excess: a rank that is as often early as late has less
LEAST_PAUSES = 4  # fewer on one rank alone may be anybody's
REGULAR = 1e-3  # of the ways to choose as many steps: a rank that pauses at random is as regular as seldom
PAUSE = 0.25  # of the work of a step: longer than any jitter
PAUSE_SDS = 8.0  # and than its own steps vary by
LASTING = 0.9  # of the steps of a while, beyond the noise of the others
MOST_OF_IT = 0.5  # of a rank's pauses, in time: one more that is an accident hides no others
FEW_STALLS, STALLS = 2, 0.05  # steps, and share of them: what happens in more is no accident
USUAL = 2.0  # times the excess of the last rank in the median step: beyond it is a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """One rank that stands out by ``size`` (s per step, mean and 95 % interval).

    ``steady``: it is late overall; otherwise it is also early at times, and varies more than the others. ``pauses``:
    the rows of the steps in which it pauses, if that is most of its lateness, and every n-th step; the size is theirs.
    ``rows``: those of the first and last step of the while in which it is late, if it is not before or after.
    ``split``: how much of the size is in its pauses, and how much in each step, if it is late in the others, too.
    """

    rank: int
    size: Interval
    steady: bool
    pauses: tuple[int, ...] = ()
    rows: tuple[int, int] | None = None
    split: tuple[Interval, Interval] | None = None

    @property
    def faults(self) -> tuple[Outlier, ...]:
        """Its pauses and its lateness in each step by themselves, where it has both; otherwise itself."""
        if self.split is None:
            return (self,)
        paused, usual = self.split
        return replace(self, size=paused, split=None), Outlier(rank=self.rank, size=usual, steady=True)

    @property
    def every(self) -> int | None:
        """It pauses once in so many steps; None: not so."""
        return self.pauses[1] - self.pauses[0] if len(self.pauses) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outliers:
    """The ranks that stand out, largest first, and the noise floor ``floor_s``, in s per step.

    ``floor_s`` is infinite where there are too few steps or ranks.
    """

    ranks: tuple[Outlier, ...]
    floor_s: float


def outliers(work_s: Floats, *, least_s: float = 0.0, seed: int = 0) -> Outliers:
    """The ranks whose ``work_s`` (steps, ranks), in s ≥ 0, is above that of the others.

    At most half of them are late at a time otherwise than by regular pauses, and at most half by these. ``least_s``:
    none is looked for where no rank works that long per step, as none can be above the others by as much.
    """
    steps, ranks = work_s.shape
    work_s = work_s.astype(np.float64)
    if steps < MIN_POINTS or ranks < 2 or (least_s > 0 and not (work_s.mean(axis=0) >= least_s).any()):
        return Outliers(ranks=(), floor_s=float("inf"))
    due, intervals = regular_pauses(work_s)
    usual_s = _without(work_s, due)
    late: dict[int, Outlier] = {}
    taken = np.zeros(steps, dtype=np.intp)
    left = np.arange(ranks)
    floor_s = float("inf")
    while left.size > 1:
        above, floor_s = _above(usual_s[:, left], np.random.default_rng(seed))
        above = [one for one in above if has_room(taken, one[2], most=ranks // 2)]
        if not above:
            break
        late |= {int(left[place]): _outstanding(int(left[place]), series, rows) for place, series, rows in above}
        left = np.delete(left, [place for place, *_ in above])
    if left.size <= 1 and late:  # each was late in its turn: what is left without that is the noise
        _, floor_s = _above(_levelled(usual_s, late.values()), np.random.default_rng(seed))
    if len(intervals) <= ranks // 2:
        late |= {one.rank: one for one in _pausing(work_s, due, late)}
    return Outliers(ranks=tuple(sorted(late.values(), key=lambda one: -one.size.value)), floor_s=floor_s)


def is_correlated(work_s: Floats) -> bool:
    """Whether steps of ``work_s`` (steps, ranks) resemble their neighbours so much that equal ranks often stand out.

    Of 40 simulated runs each with 2, 4 and 8 equal ranks, 20 to 100 steps, and autocorrelations of 0.6 to 0.95, a
    quarter and more have a rank that stands out where there are fewer than ``FEW_DRAWS`` independent steps, or
    ``ALIKE_STEPS`` and more count as one. Where steps are independent but for a while in which a rank is late, they do
    not resemble each other.
    """
    steps, ranks = work_s.shape
    if ranks < 2 or steps < MIN_POINTS:
        return False
    excess = work_s - work_s.mean(axis=1, keepdims=True)
    per_draw = float(np.median([steps_per_draw(series) for series in excess.T]))
    whiles = _late_for_a_while(beyond_others(work_s)).values() if per_draw > INDEPENDENT else ()
    for rows in whiles:
        is_there = np.zeros(steps, dtype=np.bool_)
        is_there[rows] = True
        for part in (is_there, ~is_there):
            excess[part] -= excess[part].mean(axis=0)
    if whiles:
        without = float(np.median([steps_per_draw(series) for series in excess.T]))
        per_draw = without if without <= INDEPENDENT else per_draw
    return per_draw >= ALIKE_STEPS or steps / per_draw < FEW_DRAWS


def mean_interval(series: Floats, pauses: Bools | None = None) -> Interval:
    """The mean of ``series`` (steps,) with its 95 % interval.

    Where it is there in a part of the steps only, or in ``pauses`` (steps,), whose number is no chance, these are
    resampled among themselves, as its price is; where it grows little by little, what varies about the line.
    """
    goes, each = course(series), np.ones_like(series)
    apart = pauses if goes.apart is None else goes.apart
    if apart is None:
        return ratio_interval(goes.varying, each)
    return ratio(goes.varying, each, apart).interval()


def _above(work_s: Floats, rng: np.random.Generator) -> tuple[list[tuple[int, Floats, slice | None]], float]:
    """The ranks above the noise, the latest first; and the noise floor.

    Each has its excess, and the rows in which it is late, if that is a while. The excess is the clipped one where that
    is most of it, so that a stall of the whole machine enlarges no rank; but not where many steps are so long.
    """
    excess = beyond_others(work_s)
    usual_s = USUAL * float(np.median(np.maximum(excess.max(axis=1), 0.0)))
    whole, cut = np.maximum(excess, 0.0), np.clip(excess, 0.0, usual_s)
    floors = [_shuffled(late, rng) for late in (whole, cut)]
    means = [late.mean(axis=0) for late in (whole, cut)]
    steadily_s, chance_s = _steadily(work_s)
    steady = (steadily_s > chance_s) | (means[1] > floors[1])
    for_a_while = _late_for_a_while(excess)
    if at_once(for_a_while.values(), len(excess)) > work_s.shape[1] // 2:  # they are late in turn
        for_a_while = {}
    out = steady | (means[0] > floors[0]) | np.isin(np.arange(work_s.shape[1]), list(for_a_while))
    outstanding = []
    for place in np.argsort(-means[0], kind="stable"):
        if out[place]:
            is_steady = steady[place] and means[1][place] >= STEADY_SHARE * means[0][place]
            rows, series = for_a_while.get(int(place)), excess[:, place]
            if rows is not None:
                series = np.zeros_like(series)
                series[rows] = excess[rows, place]
            elif is_steady and np.count_nonzero(np.abs(series) > usual_s) <= max(FEW_STALLS, STALLS * series.size):
                series = np.clip(series, -usual_s, usual_s)
            outstanding.append((int(place), series, rows))
    return outstanding, min(*floors, float(chance_s.max()))


def _pausing(work_s: Floats, due: Bools, late: Mapping[int, Outlier]) -> list[Outlier]:
    """The ranks that pause regularly; they may be ``late`` otherwise, too: steadily, or by less than their pauses."""
    excess = beyond_others(work_s)
    late_s, more_s = np.maximum(excess, 0.0), np.where(due, beyond_usual(work_s), 0.0)
    paused_s = np.where(due, late_s, 0.0)
    most = paused_s.sum(axis=0) >= MOST_OF_IT * late_s.sum(axis=0)
    pausing = []
    for rank in np.flatnonzero(due.any(axis=0)).tolist():
        size, split = mean_interval(paused_s[:, rank], due[:, rank]), None
        if rank in late and late[rank].steady:
            size = mean_interval(excess[:, rank], due[:, rank])
            split = mean_interval(more_s[:, rank], due[:, rank]), late[rank].size
        elif rank in late and not most[rank]:
            continue
        rows = tuple(np.flatnonzero(due[:, rank]).tolist())
        pausing.append(Outlier(rank=rank, size=size, steady=False, pauses=rows, split=split))
    return pausing


def without_pauses(work_s: Floats) -> Floats:
    """``work_s`` (steps, ranks) in which ranks exceed the others in their regular pauses as in the median step.

    What else makes ranks late is then compared in these steps, too: a pause of one hides the lateness of another.
    """
    if len(work_s) < MIN_POINTS or work_s.shape[1] < 2:
        return work_s
    return _without(work_s, regular_pauses(work_s)[0])


def _without(work_s: Floats, due: Bools) -> Floats:
    return work_s - np.where(due, beyond_usual(work_s), 0.0)


def beyond_usual(work_s: Floats) -> Floats:
    """By how much each rank exceeds the others in a step more than in the median step, s ≥ 0; both (steps, ranks)."""
    excess = beyond_others(work_s)
    return np.maximum(excess - np.median(excess, axis=0), 0.0)


def regular_pauses(work_s: Floats) -> tuple[Bools, dict[int, int]]:
    """The pauses of ranks that pause in every n-th step, by their ``work_s``, both (steps, ranks); and rank → n."""
    steps = len(work_s)
    apart = np.zeros(work_s.shape, dtype=np.bool_)
    intervals = {}
    excess = beyond_others(work_s)
    more = excess - np.median(excess, axis=0)
    sds = np.median(np.abs(more), axis=0) / QUARTILE_SD
    least_s = np.maximum(PAUSE_SDS * sds, PAUSE * float(np.median(work_s)))
    pauses = (more > 0) & (more >= least_s)
    own = work_s - np.median(work_s, axis=0)
    longest = pauses | ((own >= least_s) & (pauses.any(axis=1, keepdims=True)))  # a longer one of another rank hides it
    number = pauses.sum(axis=0)
    for rank in np.flatnonzero(number > 1):
        places = np.flatnonzero(pauses[:, rank])
        every = int(np.bincount(np.diff(places)).argmax())
        if every == 1:  # one disturbance that lasted
            continue
        offset = int(np.bincount(places % every).argmax())
        regular = places[places % every == offset]
        throughout, between = np.arange(offset, steps, every), np.arange(regular[0], regular[-1] + 1, every)
        for due in (throughout, between):
            found = float(more[due, rank].sum()) >= MOST_OF_IT * float(more[places, rank].sum())
            by_chance = _chance(steps, due.size, anywhere=due is between)
            if by_chance < REGULAR and due.size >= LEAST_PAUSES and number[rank] == number.sum():
                by_chance *= float(number.size) ** (1 - due.size)  # nor is it chance that all of them are on one rank
            if found and longest[due, rank].all() and by_chance < SELDOM:
                apart[due, rank] = True
                intervals[int(rank)] = every
    return apart, intervals


def _late_for_a_while(excess: Floats) -> dict[int, slice]:
    """Rank → the rows in which it is late, by ``excess`` (steps, ranks), if it is not before, or not after them."""
    late = {}
    for rank in np.flatnonzero(_may_change(excess)).tolist():
        there = when_there(excess[:, rank])
        if there is None or there.stop - there.start < SHORTEST:
            continue
        otherwise_s = np.delete(excess[:, rank], there)
        if otherwise_s.mean() > OVER * excess[there, rank].mean():
            continue
        usual_s = float(np.median(otherwise_s))
        noise_s = DEVIATIONS * float(np.median(np.abs(otherwise_s - usual_s))) / QUARTILE_SD
        if (excess[there, rank] > max(0.0, usual_s + noise_s)).mean() >= LASTING:
            late[rank] = there
    return late


def _levelled(work_s: Floats, late: Iterable[Outlier]) -> Floats:
    """``work_s`` (steps, ranks) in which ranks that are ``late`` work like the others on average, while they are."""
    excess, level_s = beyond_others(work_s), work_s.copy()
    for one in late:
        first, last = one.rows or (0, len(work_s) - 1)
        there = slice(first, last + 1)
        level_s[there, one.rank] -= excess[there, one.rank].mean()
    return level_s


def _may_change(excess: Floats) -> Bools:
    """Which ranks, (ranks,), may be late for a while, by ``excess`` (steps, ranks): it saves the search for the others.

    ``SHORTEST`` steps differ from as many others, by far less than those of a rank that is late so, and by more than
    those of most others. Noise is what differs from one step to the next: no change of level is part of it.
    """
    if len(excess) <= SHORTEST:
        return np.zeros(excess.shape[1], dtype=np.bool_)
    sums = np.cumsum(np.vstack([np.zeros(excess.shape[1]), excess]), axis=0)
    means = (sums[SHORTEST:] - sums[:-SHORTEST]) / SHORTEST
    noise_s = np.median(np.abs(np.diff(excess, axis=0)), axis=0) / (QUARTILE_SD * math.sqrt(2))
    may: Bools = (np.ptp(means, axis=0) >= DEVIATIONS / 2 * noise_s) & (means.max(axis=0) > 0)
    return may


def _chance(steps: int, number: int, *, anywhere: bool = False) -> float:
    """The share of the ways to choose ``number`` of ``steps`` that are each n-th step, from first to last.

    ``anywhere``: or from one of them to another.

    >>> round(_chance(90, 4) * comb(90, 4)), round(_chance(90, 4, anywhere=True) * comb(90, 4))
    (134, 1218)
    """
    every = np.arange(2, steps)
    last = steps - (number - 1) * every  # steps in which the first of them may be
    if not anywhere:
        last = np.minimum(every, last) - np.maximum(0, steps - number * every)
    return float(np.maximum(0, last).sum()) / comb(steps, number)


def _steadily(work_s: Floats) -> tuple[Floats, Floats]:
    """The trimmed mean by which each rank exceeds the mean of the others, and its noise floor; (ranks,)."""
    steps, ranks = work_s.shape
    excess = (work_s - work_s.mean(axis=1, keepdims=True)) * (ranks / (ranks - 1))
    cut = int(TRIMMED * steps)
    kept = steps - 2 * cut
    ordered = np.sort(excess, axis=0)
    held = np.clip(excess, ordered[cut], ordered[steps - 1 - cut])  # winsorised: gives the spread of a trimmed mean
    per_draw = np.array([steps_per_draw(series) for series in held.T])
    error_s = held.std(axis=0, ddof=1) * (np.sqrt(steps * per_draw) / kept)
    freedom = np.maximum((kept - 1) / per_draw, MIN_FREEDOM).astype(np.intp)  # rounded down: fewer false alarms
    reach = {int(one): quantile(1 - SELDOM / ranks, float(one)) for one in np.unique(freedom)}
    chance_s = error_s * np.array([reach[int(one)] for one in freedom])
    return ordered[cut : steps - cut].mean(axis=0), np.maximum(chance_s, ROUNDING * np.abs(work_s).mean())


def _outstanding(rank: int, excess: Floats, rows: slice | None) -> Outlier:
    late = np.maximum(excess, 0.0)
    if rows is not None:
        return Outlier(rank=rank, size=mean_interval(late), steady=False, rows=(rows.start, rows.stop - 1))
    steady = bool(np.median(excess) > 0 and excess.mean() >= STEADY_SHARE * late.mean())
    return Outlier(rank=rank, size=mean_interval(excess if steady else late), steady=steady)


def _shuffled(late: Floats, rng: np.random.Generator) -> float:
    """The largest mean of a rank under the null: mean and ``DEVIATIONS`` standard deviations over shuffles."""
    steps = late.shape[0]
    blocks = min(MAX_BLOCKS, max(1, steps // MIN_BLOCK))
    starts = np.linspace(0, steps, blocks, endpoint=False).astype(np.intp)
    sums = np.add.reduceat(late, starts, axis=0)
    largest = np.empty(SHUFFLES)
    at_once = max(1, min(SHUFFLES, AT_ONCE // sums.size))
    for first in range(0, SHUFFLES, at_once):
        several = np.broadcast_to(sums, (min(at_once, SHUFFLES - first), *sums.shape)).copy()
        rng.permuted(several, axis=2, out=several)
        largest[first : first + at_once] = several.sum(axis=1).max(axis=1) / steps
    return float(largest.mean() + DEVIATIONS * largest.std())
