"""Loaders at their limit: whoever trains faster waits longer, because batches come no sooner.

Where workers make batches in the background, waiting for them means one of two things. Either they are too slow: they
deliver at their own pace, and each ms that the rest of the step becomes shorter is waited for. Or to take a batch from
them takes that time, however fast the rest of the step is. Recorded steps tell the two apart, since they vary: in the
first case the wait is shorter by what the rest of a step is longer, a slope of −1, and in the second it does not
depend on it.

Where workers timed what they made, it is known without any wait. If a loader takes longer for the batches of a step
than the step does without waiting for them, it sets the pace. Loaders of several ranks that do, and vary, are waited
for in turn: those that are ahead by chance have full queues, and only the last one is waited for. So who waits says
nothing of whose loader is slow; paces do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.outliers import Outlier, mean_interval
from allpull.explain.evidence.loading.loader_pace import LoaderPace
from allpull.explain.evidence.start import Start
from allpull.replay.engine import fetch_work_s, moments, replay, total_work_s
from allpull.replay.leave_one_out import beyond_others
from allpull.replay.whatif.work import lower_median, without_input
from allpull.replay.window import Bools, Deliveries, Making, Window

ALONE = 1  # process of a rank: itself, without workers
LEAST = 0.04  # of a step: taking a batch from a queue, or making a small one, is no fault
ALWAYS = 0.9  # of the steps: a loader that is waited for that often never gets ahead
NEARLY = 0.1  # of the steps: a loader that is waited for so often, and in the step before, gets hardly ahead
TAKING = 0.1  # quantile of the waits: what it takes to take a batch that is ready
NEARER = -0.5  # the slope half-way between a loader at its limit and one that takes its time
ERRORS = 2.0  # standard errors that a slope has to be away from it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loading:
    """``limits``: the deliveries if loaders are at their limit. ``certain``: they are; otherwise they may be.

    ``nearly``: the deliveries if those that are often waited for get no faster, too. ``timed``: by workers, so that it
    is known how fast loaders are, also of those that nobody waits for. ``ready``: batches are there when they are asked
    for, and to take one is what takes time. ``late`` (ranks,): loaders that take longer for the batches of a step than
    the step does without waiting for any, by their own time; ``slower`` (ranks,): beyond the noise slower than the
    others'. ``slowest`` (ranks,): as in ``LoaderPace``. None: not timed.
    """

    limits: Deliveries
    nearly: Deliveries
    certain: bool = False
    timed: bool = False
    ready: bool = False
    late: Bools | None = None
    slower: Bools | None = None
    slowest: Floats | None = None

    @property
    def making(self) -> Making | None:
        """How fast workers make batches, where they timed it."""
        return self.limits.making

    @property
    def everywhere(self) -> bool:
        """Whether the loaders of all ranks are at their limit: who of them waits longest is a matter of phase."""
        return self.in_turn or (self.certain and bool(self.limits.period_s.any(axis=0).all()))

    @property
    def in_turn(self) -> bool:
        """Whether those of at least half of the ranks are, by their own time: they may be waited for in turn."""
        return self.late is not None and _of_half(self.late)

    @property
    def makes_up(self) -> bool:
        """Whether some loaders are, or may be, so slow that they are waited for by ranks that nothing else delays."""
        return bool(self.nearly.period_s.any())


def loading_of(
    window: Window, machine: Machine, first: Bools, start: Start, pace: LoaderPace | None = None
) -> Loading | None:
    """Whether loaders of ``window`` are at their limit; None: nobody is known to load ahead, or they are far from it.

    ``first`` (steps,): the first batch of an epoch, which is waited for whatever the pace. Threads that read a pack
    count as one worker: they make one batch after the other. ``pace``: of workers that timed what they made; None: it
    shows in their waits alone.
    """
    workers = _workers(machine, start) if pace is None else pace.workers
    if workers < 1 or not ("input" in window.work or pace is not None):
        return None
    window = _with_input(window)
    paces = _paces(window, workers, window.odd | first)
    limits = _of_the_late(window, paces)
    busy = _made_without_pause(window, paces)
    nearly = _with_nearly_late(paces, limits, busy)
    is_behind = bool(limits.period_s.any())
    if not nearly.period_s.any() and pace is None:
        return None
    low, high = _slope(window, paces, _whole(limits) if is_behind else busy & (nearly.period_s > 0))
    is_made_late = pace is not None and is_behind and _takes_whole_steps(window, pace, limits)
    late = None if pace is None else pace.step_s > _unfed_step_s(window, window.odd | first)
    in_turn = late is not None and _of_half(late)
    takes_time = low > NEARER and not is_made_late and not in_turn
    if takes_time:
        limits = nearly = replace(limits, period_s=np.zeros_like(limits.period_s))
    certain = in_turn or (is_behind and (is_made_late or high < NEARER))
    is_known = pace is not None and (certain or takes_time or not is_behind)
    if pace is not None:
        making = _making(pace, _delivered_s(window), first)
        limits, nearly = (replace(one, making=making) for one in (limits, limits if is_known else nearly))
    return Loading(
        limits=limits,
        nearly=nearly,
        certain=certain,
        timed=is_known,
        ready=is_behind and takes_time,
        late=late,
        slower=None if pace is None else pace.slower,
        slowest=None if pace is None else pace.slowest,
    )


def late_by_pace(window: Window, loading: Loading | None, waiting: tuple[Outlier, ...]) -> tuple[Outlier, ...]:
    """The ranks whose loaders are slower than the others': of those that are ``waiting`` longer, and of others.

    Where at least half of all loaders set the pace, a rank that waits longer than the others is only the last one by
    chance, unless its workers are slower.
    """
    if loading is None or loading.late is None or loading.slower is None:
        return waiting
    late = loading.late & loading.slower
    kept = [one for one in waiting if late[one.rank] or not loading.in_turn]
    missing = np.flatnonzero(late & ~np.isin(np.arange(window.ranks), [one.rank for one in kept]))
    if missing.size:
        longer_s = np.maximum(beyond_others(window.per_step("input")), 0.0)
        kept += [Outlier(rank=int(rank), size=mean_interval(longer_s[:, rank]), steady=False) for rank in missing]
    return tuple(sorted(kept, key=lambda one: -one.size.value))


def _of_half(each: Bools) -> bool:
    """Whether ``each`` (ranks,) is true of at least half of the ranks; of two, of both."""
    return bool(lower_median(each.astype(np.float64)))


def _unfed_step_s(window: Window, unusual: Bools) -> float:
    """How long an ordinary step takes if nobody waits for a batch, s; the median."""
    step_s = replay(replace(without_input(window), deliveries=None)).step_s
    return float(np.median(step_s if unusual.all() else step_s[~unusual]))


def _takes_whole_steps(window: Window, pace: LoaderPace, limits: Deliveries) -> bool:
    """Whether the late loaders make the batches of a step in no less time than the step takes."""
    late = limits.period_s.any(axis=0)
    return bool((pace.step_s >= ALWAYS * window.wall_s.mean(axis=0))[late].all())


def limited(window: Window, deliveries: Deliveries) -> Window:
    """``window`` in which nobody gets a batch sooner than it was made."""
    return replace(_with_input(window), deliveries=deliveries)


def _with_input(window: Window) -> Window:
    """``window`` with a phase of waiting for batches, also where no device ever did, as its host was ahead."""
    if "input" in window.work:
        return window
    return replace(window, work={**window.work, "input": np.zeros((window.events, window.ranks))})


def _workers(machine: Machine, start: Start) -> int:
    """How many of each rank make batches ahead; 0: none, or it is not known."""
    return max(int(start.packed), 0 if machine.started is None else machine.started - ALONE)


def _paces(window: Window, workers: int, unusual: Bools) -> Deliveries:
    """The deliveries as if all ranks waited for their workers in every step; periods of unusual steps are 0."""
    input_s = window.work["input"]
    last = _fetching(window, input_s)
    fetches = np.isin(np.arange(window.events), list(last.values()))
    delivered_s = _delivered_s(window)
    period_s = delivered_s.copy()
    period_s[workers:] -= delivered_s[:-workers]
    known = _over(~unusual & np.isin(np.arange(window.steps.size), list(last)), workers)
    known[:workers] = ~unusual[:workers]
    period_s[~known] = 0.0
    return Deliveries(workers=workers, period_s=period_s, fetches=fetches, input_s=input_s)


def _delivered_s(window: Window) -> Floats:
    """When each rank has the batch of each step, in s after the first begin, (steps, ranks); 0: in no event."""
    delivered_s = np.zeros((window.steps.size, window.ranks))
    last, work_s = _fetching(window, window.work["input"]), total_work_s(window)
    stand_s = moments(window).stand_s
    for step, event in last.items():
        delivered_s[step] = stand_s[event] - (work_s[event] - fetch_work_s(window, event))
    return delivered_s


def _making(pace: LoaderPace, delivered_s: Floats, fresh: Bools) -> Making:
    """What workers make at ``pace``, with a lead in which no batch comes later than it did (steps, ranks).

    A lead is at most what may be made ahead. Where the recorded steps do not need one, there is none: it is used up
    once, while what another loss costs is asked for each step.
    """
    late_s, made_s = np.zeros(pace.step_s.size), delivered_s[0]
    for step in range(1, delivered_s.shape[0]):
        if fresh[step]:
            break
        begun_s = delivered_s[step - pace.ahead] + pace.batch_s if step >= pace.ahead else made_s
        made_s = np.maximum(made_s + pace.step_s, begun_s)
        late_s = np.maximum(late_s, made_s - delivered_s[step])
    return Making(
        batch_s=pace.batch_s,
        step_s=pace.step_s,
        ahead=pace.ahead,
        fresh=fresh,
        lead_s=np.minimum(late_s, pace.ahead * pace.step_s),
    )


def _fetching(window: Window, input_s: Floats) -> dict[int, int]:
    """Step → the event before which its batch is fetched: where a rank waits, and else where one usually does."""
    last = {int(window.step_of[event]): int(event) for event in np.flatnonzero(input_s.any(axis=1))}
    begins = np.searchsorted(window.step_of, np.arange(window.steps.size))
    places = [event - int(begins[step]) for step, event in last.items()]
    usual = int(np.bincount(places).argmax()) if places else 0
    ends = np.append(begins[1:], window.events)
    return {
        step: last.get(step, int(min(begins[step] + usual, ends[step] - 1)))
        for step in range(window.steps.size)
        if ends[step] > begins[step]
    }


def _of_the_late(window: Window, paces: Deliveries) -> Deliveries:
    """``paces`` of the ranks that nearly always wait for a worker; periods of others are 0."""
    first = paces.workers  # their period is no whole one
    known = paces.period_s[first:].any(axis=1)
    waited = (_waited_s(window, first) > LEAST * paces.period_s)[first:][known]
    behind = waited.sum(axis=0) >= ALWAYS * max(1, known.sum())
    return replace(paces, period_s=np.where(behind, paces.period_s, 0.0))


def _whole(limits: Deliveries) -> Bools:
    """The batches, (steps, ranks), of ranks at their limit whose period lies in the window."""
    whole: Bools = limits.period_s > 0
    whole[: limits.workers] = False
    return whole


def _made_without_pause(window: Window, paces: Deliveries) -> Bools:
    """The batches, (steps, ranks), that were waited for as the one before of the same worker was."""
    input_s, workers = window.per_step("input"), paces.workers
    waited = input_s > np.quantile(input_s, TAKING, axis=0) + LEAST * window.wall_s.mean(axis=0)
    made: Bools = waited & (paces.period_s > 0)
    made[:workers] = False
    made[workers:] &= waited[:-workers]
    return made


def _with_nearly_late(paces: Deliveries, limits: Deliveries, busy: Bools) -> Deliveries:
    """``limits``, and ``paces`` of other ranks whose workers often are ``busy`` (steps, ranks) without a pause."""
    often = busy.sum(axis=0) >= max(MIN_POINTS, NEARLY * busy.shape[0])
    return replace(limits, period_s=np.where(often, paces.period_s, limits.period_s))


def _over(usual: Bools, workers: int) -> Bools:
    """The steps, (steps,), that are usual together with those back to the batch before of the same worker."""
    known = usual.copy()
    for back in range(1, workers + 1):
        known[back:] = known[back:] & usual[:-back]
        known[:back] = False
    return known


def _waited_s(window: Window, workers: int) -> Floats:
    """How long ranks waited for the last ``workers`` batches, (steps, ranks)."""
    total_s = np.cumsum(window.per_step("input"), axis=0)
    waited_s = total_s.copy()
    waited_s[workers:] -= total_s[:-workers]
    return waited_s


def _slope(window: Window, paces: Deliveries, points: Bools) -> tuple[float, float]:
    """By how much a wait is longer where the rest of the steps is longer by 1 s, as an interval.

    ``points`` (steps, ranks): of which batches.
    """
    ranks = points.any(axis=0)
    all_waited_s = _waited_s(window, paces.workers)
    waited_s, rest_s = (_centred(each_s, points)[points] for each_s in (all_waited_s, paces.period_s - all_waited_s))
    draws = waited_s.size / paces.workers - ranks.sum() - 1  # sums over several steps overlap
    spread = float((rest_s**2).sum())
    if points.any(axis=1).sum() < MIN_POINTS or draws < 1 or not spread > 0:
        return -np.inf, np.inf
    slope = float((rest_s * waited_s).sum()) / spread
    error = np.sqrt(float(((waited_s - slope * rest_s) ** 2).sum()) / draws / spread)
    return slope - ERRORS * error, slope + ERRORS * error


def _centred(each_s: Floats, points: Bools) -> Floats:
    """``each_s`` (steps, ranks) less the mean of each rank over ``points``."""
    mean_s = np.where(points, each_s, 0.0).sum(axis=0) / np.maximum(1, points.sum(axis=0))
    centred: Floats = each_s - mean_s
    return centred
