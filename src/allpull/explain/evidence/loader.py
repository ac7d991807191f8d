"""The wait for loaders that all ranks have in common: without the excess of some ranks, and of first batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.few_steps import in_few_steps
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import times
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.outliers import mean_interval
from allpull.explain.evidence.loading.deliveries import ALONE, LEAST
from allpull.replay.engine import replay
from allpull.replay.whatif.work import lower_median, without_input
from allpull.replay.window import Bools, Deliveries, Window
from allpull.schema.explained import Evidence
from allpull.schema.results import Interval

BEHIND = 2.0  # times the wait of at least half of the ranks: beyond it, not all ranks are concerned
SATURATED = 0.9  # of the CPUs: more workers do not help where no more CPUs are free
NEARLY = 0.5  # of a step: loaders that are twice as fast limit nothing, whatever else is mended
FAR = 0.5  # of the rest of a step: with less, workers are ahead unless they have just started
MOST_WORKERS = 16  # per rank: more are seldom faster
TIMED = "workers of the loaders, timed by themselves"
MADE = "time that the workers of a rank, all together, take for the batches of a step, longest of all ranks"
SLACK = 1.25  # times the workers that suffice if all batches take the same time


def common_input(facts: Facts) -> Interval | None:
    """The wait of at least half of the ranks for their loaders in an ordinary step, s; None where it is negligible.

    Of two ranks that is the wait of the one that waits less: where one has all of it, it is not common to both. Of
    loaders that are waited for in turn it is by how much all steps are longer because of the last of them.
    """
    if waited_in_turn(facts):
        return _in_turn(facts)
    input_s = facts.window.per_step("input")
    usual = ~(facts.first | facts.window.odd)
    if usual.sum() < MIN_POINTS or _shared_s(input_s[usual]) < LEAST * facts.step_s:
        return None
    rank = int((input_s[usual].mean(axis=0) == _shared_s(input_s[usual])).argmax())
    return mean_interval(input_s[usual, rank])


def steps_of_long_waits(facts: Facts) -> Bools | None:
    """The steps in which a rank waits for long, where each does so in a few, and nearly all waiting is there, (steps,).

    Workers that are too slow, all alike, are waited for in a few steps, too: long for the first of them, not for the
    others. So this is told of loaders without workers only, and of workers that are timed and fast. None: there are no
    such steps.
    """
    has_workers = facts.workers or (facts.machine.started or 1) > 1
    if waited_in_turn(facts) or (has_workers and not makers_are_fast(facts)):
        return None
    usual = ~(facts.first | facts.window.odd)
    found = in_few_steps(facts.window.per_step("input")[usual], facts.window.wall_s[usual].mean(axis=1))
    if found is None:
        return None
    steps = np.zeros_like(usual)
    steps[usual] = found.any(axis=1)
    return steps


def makers_are_fast(facts: Facts) -> bool:
    """Whether workers, timed by themselves, make the batches of a step in far less time than a step takes without."""
    making, waited = None if facts.loading is None else facts.loading.limits.making, common_input(facts)
    waited_s = 0.0 if waited is None else waited.value
    return making is not None and float(making.step_s.max()) < FAR * (facts.step_s - waited_s)


def waited_in_turn(facts: Facts) -> bool:
    """Whether loaders set the pace, and are waited for in turn: the steps are longer by more than a rank waits."""
    return facts.loading is not None and facts.loading.in_turn


def behind_others(facts: Facts) -> tuple[int, ...] | None:
    """The ranks whose loaders are behind those of the others; None: all of them set the pace, and none stands out."""
    everywhere = facts.loading is not None and facts.loading.everywhere
    return None if everywhere else tuple(one.rank for one in facts.late.loaders)


def _in_turn(facts: Facts) -> Interval | None:
    """By how much steps are longer because they wait for loaders, s; None where it is negligible."""
    steps = ~(facts.first | facts.window.odd)
    longer_s = replay(replace(facts.window, deliveries=None)).step_s - replay(without_input(facts.window)).step_s
    if steps.sum() < MIN_POINTS or longer_s[steps].mean() < LEAST * facts.step_s:
        return None
    return mean_interval(longer_s[steps])


def nearly_waited_for_s(facts: Facts) -> Floats | None:
    """How long the workers of each rank take for the batches of a step, s, (ranks,), 0 if that is far from their limit.

    None: they did not time it. A loader that nobody waits for may be what limits all, once something else is mended.
    """
    making = None if facts.loading is None else facts.loading.making
    return None if making is None else np.where(making.step_s >= NEARLY * facts.step_s, making.step_s, 0.0)


def slower_makers(facts: Facts) -> tuple[int, ...]:
    """The ranks whose workers are slower than the others', whether anybody waits for them or not."""
    slower = None if facts.loading is None else facts.loading.slower
    return () if slower is None else tuple(np.flatnonzero(slower).tolist())


def slowest_worker(facts: Facts, ranks: Sequence[int]) -> tuple[Evidence, ...]:
    """That one worker of ``ranks`` is slower than the others of its rank, which have to wait for their turn."""
    slowest = None if facts.loading is None else facts.loading.slowest
    if slowest is None or not (slowest[list(ranks)] > 1).any():
        return ()
    rank = max(ranks, key=lambda one: float(slowest[one]))
    what = f"time for a batch of the slowest loader worker of rank {rank}, against its other workers"
    return (times(what, float(slowest[rank]), TIMED),)


def fewer_workers(facts: Facts, ranks: Sequence[int]) -> int | None:
    """The workers of the median other rank, where each of ``ranks`` has fewer; None: they have as many."""
    others = [workers for rank, workers in enumerate(facts.worker_counts) if rank not in ranks]
    usual = int(np.median(others)) if others else 0
    return usual if others and all(facts.worker_counts[rank] < usual for rank in ranks) else None


def without_common_input(
    window: Window, first: Bools, behind: tuple[int, ...] | None, most_s: float = math.inf
) -> Window:
    """No rank waits for its loader, except for the excess of some ranks over the others, and for first batches.

    ``first`` (steps,): the first batch of an epoch. ``behind``: ranks that stand out; ranks that wait ``BEHIND`` times
    as long as others count as such, too. None: none of them does. ``most_s``: no more than that per step is gone on the
    mean. The workers of the other ranks make batches as fast as that needs.
    """
    if "input" not in window.work:
        return window
    input_s = window.per_step("input")
    is_behind = _behind(input_s, behind)
    common_s = _common(input_s, first | window.odd, is_behind)
    common_s *= min(1.0, most_s / max(float(common_s.mean()), 1e-12))
    kept = np.divide(input_s - common_s, input_s, out=np.zeros_like(input_s), where=input_s > 0)
    work = {**window.work, "input": window.work["input"] * kept[window.step_of]}
    least_s = max(0.0, float(window.wall_s.mean()) - most_s)
    return replace(window, work=work, deliveries=_made_in(window.deliveries, least_s, ~is_behind))


def _made_in(deliveries: Deliveries | None, least_s: float, ranks: Bools) -> Deliveries | None:
    """``deliveries`` in which workers of ``ranks`` (ranks,) make the batches of a step in ``least_s`` or less."""
    if deliveries is None:
        return None
    making = deliveries.making
    if making is not None:
        step_s, batch_s = (
            np.where(ranks, np.minimum(each_s, least_s), each_s) for each_s in (making.step_s, making.batch_s)
        )
        making = replace(making, step_s=step_s, batch_s=batch_s)
    return replace(deliveries, period_s=np.where(ranks, 0.0, deliveries.period_s), making=making)


def _behind(input_s: Floats, behind: tuple[int, ...] | None) -> Bools:
    """Which ranks wait so much longer than the others that their excess is their own, (ranks,); see above."""
    is_behind = np.zeros(input_s.shape[1], dtype=np.bool_)
    if behind is not None:
        is_behind = input_s.mean(axis=0) > BEHIND * _shared_s(input_s)
        is_behind[list(behind)] = True
    return is_behind


def _common(input_s: Floats, unusual: Bools, is_behind: Bools) -> Floats:
    """The part of each wait that is common, shape (steps, ranks)."""
    common_s = input_s.copy()
    if is_behind.any() and not is_behind.all():
        usual_s = np.median(input_s[:, ~is_behind], axis=1, keepdims=True)
        common_s[:, is_behind] = np.minimum(input_s[:, is_behind], usual_s)
    if unusual.any() and not unusual.all():
        common_s[unusual] = np.minimum(common_s[unusual], np.median(common_s[~unusual], axis=0))
    return common_s


def _shared_s(input_s: Floats) -> float:
    """The least wait of at least half of the ranks, s per step; of (steps, ranks)."""
    return float(lower_median(input_s.mean(axis=0)))


def has_no_cpu_left(facts: Facts) -> bool:
    """Whether the job keeps the CPUs of every host busy: then workers take them from each other and from training."""
    shares = [facts.machine.busy_share(host) for host in facts.machine.host_names]
    return all(one is not None and one >= SATURATED for one in shares)


def shares_last_cpus(facts: Facts) -> bool:
    """Whether CPUs of a host are all busy, with other programs too: more workers get an unknown share of them."""
    machine = facts.machine
    return any(
        own is not None and own + (machine.other_share(host) or 0.0) >= SATURATED
        for host in machine.host_names
        for own in [machine.busy_share(host)]
    )


def most_saved_s(facts: Facts) -> float:
    """The largest part of a step, s, that more workers can save: their work stays, and the CPUs have to do it.

    Infinite where CPUs are not counted.
    """
    shares = [facts.machine.busy_share(host) for host in facts.machine.host_names]
    known = [one for one in shares if one is not None]
    return max(0.0, 1.0 - max(known)) * facts.step_s if known else math.inf


def workers_now(facts: Facts) -> int | None:
    """The workers of each rank: those that timed what they made, or at most its other processes; None: not counted."""
    started = facts.machine.started
    return facts.workers if facts.workers is not None or started is None else max(0, started - ALONE)


def workers_needed(facts: Facts, waited_s: float) -> int | None:
    """Workers per rank that make batches as fast as the training takes them; None: workers are not counted.

    Without a worker a batch takes ``waited_s`` to make; workers that are behind make their number of batches per step.
    """
    now, left_s = workers_now(facts), facts.step_s - waited_s
    if now is None or left_s <= 0:
        return None
    return min(MOST_WORKERS, max(now + 1, math.ceil(SLACK * (now * facts.step_s if now else waited_s) / left_s)))
