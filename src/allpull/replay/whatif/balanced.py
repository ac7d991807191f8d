"""What if ranks were equal? The work of some or all of them is replaced by the usual work among them.

Where backward changes, so do the moments at which its buckets are ready. Transfers stay as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.useful import useful
from allpull.replay.whatif.work import ORCHESTRATION, lower_median, scaled, shorter_by, without_orchestration
from allpull.replay.window import REDUCE, WORK, Bools, Window

EVERY_DAY = tuple(name for name in WORK if name not in {"evaluation", "checkpoint"})
"""What all ranks do in every step, so that they can be compared."""

MIN_STEPS = 2  # a line goes through two of them, and leaves nothing


def like_median(
    window: Window,
    ranks: Collection[int],
    phases: Collection[str] = EVERY_DAY,
    unlike: Collection[int] = (),
    during: tuple[int, int] | None = None,
) -> Window:
    """``ranks`` work in ``phases`` as long as the median of the other ranks, event by event, and vary as those do.

    Ranks ``unlike`` stay as they are and are not part of that median, unless there are no others. Nothing changes where
    there are no other ranks at all, nor before and after the while in which they are late, ``during`` the rows of its
    first and last step.
    """
    chosen = np.isin(np.arange(window.ranks), list(ranks))
    if chosen.all() or not chosen.any():
        return window
    models = ~chosen & ~np.isin(np.arange(window.ranks), list(unlike))
    if not models.any():
        models = ~chosen

    def levelled(seconds: Floats) -> Floats:
        changed = seconds.copy()
        changed[..., chosen] = _median(seconds[..., models])
        return changed

    there = np.full(window.steps.size, during is None)
    if during is not None:
        there[during[0] : during[1] + 1] = True
    level = _varying(_changed(window, phases, levelled), window, phases, chosen, models=models, there=there)
    if not there.all():
        level = _only(level, window, there)
    return _making_alike(level, chosen, models) if "input" in phases else level


def _only(changed: Window, window: Window, there: Bools) -> Window:
    """``window`` with the work of ``changed`` in the steps ``there``, (steps,)."""
    of_events = there[window.step_of]
    work = {name: np.where(of_events[:, None], changed.work[name], own) for name, own in window.work.items()}
    lane, other = window.reductions, changed.reductions
    if lane is not None and other is not None:
        of_lane = of_events[window.kind == REDUCE][:, None, None]
        lane = replace(lane, lead_s=np.where(of_lane, other.lead_s, lane.lead_s))
    return replace(changed, work=work, reductions=lane)


def _making_alike(window: Window, chosen: Bools, models: Bools) -> Window:
    """``window`` in which the loaders of ``chosen`` ranks make batches as fast as the median of ``models``."""
    loaders = window.deliveries
    if loaders is None or loaders.making is None:
        return window
    making = loaders.making
    batch_s, step_s = (
        np.where(chosen, np.median(each_s[models]), each_s) for each_s in (making.batch_s, making.step_s)
    )
    alike = replace(
        loaders,
        period_s=np.where(chosen, 0.0, loaders.period_s),
        making=replace(making, batch_s=batch_s, step_s=step_s),
    )
    return replace(window, deliveries=alike)


def not_above_median(window: Window, ranks: Collection[int], phases: Collection[str] = EVERY_DAY) -> Window:
    """As ``like_median``, but only before those events of a step before which a rank works longer than the others."""
    like = like_median(window, ranks, phases)
    more_s = _of_events(window, phases) - _of_events(like, phases)
    longer = _mean_by_place(more_s, window, ~window.odd[window.step_of]) > 0
    work = {name: np.where(longer, like.work[name], seconds) for name, seconds in window.work.items()}
    lane, other = window.reductions, like.reductions
    if lane is not None and other is not None:
        lane = replace(lane, lead_s=np.where(longer[window.kind == REDUCE][:, None, :], other.lead_s, lane.lead_s))
    return replace(window, work=work, reductions=lane)


def _varying(
    level: Window, window: Window, phases: Collection[str], chosen: Bools, *, models: Bools, there: Bools
) -> Window:
    """``level`` in which work of ``chosen`` ranks deviates ``there`` as in ``window``, as far as that of ``models``.

    A rank without jitter of its own is never the last one: of two equal ranks, that alone saves 0.56 standard
    deviations of their work before each event. What a rank varies by beyond the others is part of its fault. So is what
    goes with the others' work: a rank that is late in long steps alone is late there, and does not vary.
    """
    usual = ~window.odd & there
    if not usual.any():
        return level
    work_s = sum((window.per_step(name) for name in phases), start=np.zeros(window.wall_s.shape))[usual]
    share = np.ones(window.ranks)
    share[chosen] = _share_of_jitter(work_s[:, chosen], work_s[:, models])
    used, own_s = usual[window.step_of], _of_events(level, phases)
    deviation_s = share * _deviation(_of_events(window, phases), models, window, used)
    varied_s = np.maximum(own_s + deviation_s, 0.0)
    varied_s *= _quotient(own_s[used].sum(axis=0), varied_s[used].sum(axis=0))  # below 0 there is none to take away
    kept = _quotient(varied_s, own_s)
    del own_s, deviation_s, varied_s  # each may be as large as a window's work in a phase
    kept[~used] = 1.0
    kept[:, ~chosen] = 1.0
    work = {name: seconds * kept if name in phases else seconds for name, seconds in level.work.items()}
    lane = level.reductions
    if lane is not None and "backward" in phases:
        lane = replace(lane, lead_s=lane.lead_s * kept[window.kind == REDUCE][:, None, :])
    return replace(level, work=work, reductions=lane)


def _share_of_jitter(work_s: Floats, models_s: Floats) -> Floats:
    """The jitter of models divided by that of each rank, at most 1, (ranks,).

    ``work_s`` is (steps, ranks), and ``models_s`` (steps, models). Jitter is the part of a variance that is no
    covariance of the two: what steps have in common, such as batches of different lengths, is in both. Nor is it what
    grows or shrinks from the first step to the last.
    """
    own, others = _about_line(work_s), _about_line(models_s)
    common = others.T @ own / work_s.shape[0]
    usual = np.median(others.var(axis=0)[:, None] - common, axis=0)
    jitter = own.var(axis=0) - np.median(common, axis=0)
    share: Floats = np.sqrt(np.clip(np.divide(usual, jitter, out=np.ones_like(usual), where=jitter > 0), 0.0, 1.0))
    return share


def _deviation(work_s: Floats, models: Bools, window: Window, used: Bools) -> Floats:
    """By how much the excess of ``work_s`` over that of ``models`` differs from its mean, (events, ranks).

    A lateness that grows is larger than its mean in the end, and does not vary.
    """
    excess_s = work_s - _median(work_s[:, models])
    excess_s -= _mean_by_place(excess_s, window, used)
    excess_s[used] = _about_line(excess_s[used])
    return excess_s


def _about_line(values: Floats) -> Floats:
    """``values`` (n, ranks) less a straight line through those of each rank, by least squares."""
    centred: Floats = values - values.mean(axis=0)
    place = np.arange(len(values)) - (len(values) - 1) / 2
    if len(values) > MIN_STEPS:
        centred -= place[:, None] * (place @ centred / (place @ place))
    return centred


def _of_events(window: Window, phases: Collection[str]) -> Floats:
    """Work in ``phases`` since the event before, (events, ranks)."""
    none_s = np.zeros((window.events, window.ranks))
    return sum((seconds for name, seconds in window.work.items() if name in phases), start=none_s)


def _mean_by_place(values: Floats, window: Window, used: Bools) -> Floats:
    """The mean of ``values`` (events, ranks) over the ``used`` events like each: at its place of a step with as many.

    Steps that do not have the same meetings, as between two averages of local SGD, have no places in common.
    """
    place = np.arange(window.events) - np.searchsorted(window.step_of, window.step_of)
    number = np.bincount(window.step_of, minlength=window.steps.size)[window.step_of]
    most = int(number.max(initial=0)) + 1
    kind = window.kind.astype(np.int64) * (len(window.uses) + 1) + window.use + 1
    _, like = np.unique((kind * most + number) * most + place, return_inverse=True)
    total, count = (
        np.zeros((int(like.max(initial=0)) + 1, window.ranks)),
        np.bincount(like[used], minlength=like.max() + 1),
    )
    np.add.at(total, like[used], values[used])
    mean: Floats = (total / np.maximum(count, 1)[:, None])[like]
    return mean


def without_rotation(window: Window) -> Window:
    """A rank that is slow is slow in every event: each rank keeps its share of all useful work, evenly over events.

    The useful work of an event becomes its mean over ranks times the rank's share in the whole window. What ranks take
    in turn in the phases between is gone, as far as half of them do. What is left is persistent imbalance.
    """
    window = shorter_by(window, _in_turn(window))
    work = useful(window)
    share = _share(work, window.ranks)
    if share is None:
        return window
    lane = window.reductions
    if lane is not None:
        lane = replace(lane, lead_s=_mean(lane.lead_s) * share)
    evened = _with(window, work, lambda seconds: _mean(seconds) * share - seconds)
    return replace(window, work=evened, reductions=lane)


def _in_turn(window: Window) -> dict[str, Floats]:
    """Orchestration beyond what ranks have in common in a step, up to what the lower median rank has of it in total.

    Phase → s, (steps, ranks).
    """
    left = without_orchestration(window)
    excess = {name: left.per_step(name) for name in ORCHESTRATION if name in window.work}
    total_s = sum((seconds.sum(axis=0) for seconds in excess.values()), start=np.zeros(window.ranks))
    usual_s = lower_median(total_s)
    part = np.divide(np.minimum(usual_s, total_s), total_s, out=np.zeros_like(total_s), where=total_s > 0)
    return {name: part * seconds for name, seconds in excess.items()}


def without_persistence(window: Window) -> Window:
    """All ranks have equal useful work over the window: a rank has less or more of it where it usually differs.

    In the phases between, no rank takes longer in total than the lower median rank. What is left is rotating imbalance.
    """
    window = scaled(window, ORCHESTRATION, _not_above_usual(window))
    work = useful(window)
    factor = _levelling(window, sum(work.values(), start=np.zeros((window.events, window.ranks))))
    lane = window.reductions
    if lane is not None:
        lane = replace(lane, lead_s=lane.lead_s * factor[window.kind == REDUCE][:, None, :])
    evened = _with(window, work, lambda seconds: seconds * (factor - 1.0))
    return replace(window, work=evened, reductions=lane)


def shared_out(window: Window, phases: Collection[str]) -> Window:
    """What differs from one step to the next is shared by all ranks: the work before an event takes as long in total.

    By how much a rank works in ``phases`` more, or less, than usual before that event of a step becomes the mean of
    all ranks. What is usual for each rank stays.
    """
    used = np.ones(window.events, dtype=np.bool_)

    def shared(seconds: Floats) -> Floats:
        usual_s = _mean_by_place(seconds, window, used)
        return np.maximum(usual_s + _mean(seconds - usual_s), 0.0)

    work = {name: shared(seconds) if name in phases else seconds for name, seconds in window.work.items()}
    lane = window.reductions
    if lane is not None and "backward" in phases and "backward" in work:
        kept = _quotient(work["backward"], window.work["backward"])[window.kind == REDUCE]
        lane = replace(lane, lead_s=lane.lead_s * kept[:, None, :])
    return replace(window, work=work, reductions=lane)


def _levelling(window: Window, work_s: Floats) -> Floats:
    """The factor of ``work_s`` by which each rank has as much of it as the mean rank, both (events, ranks).

    It differs from 1 before those events of a step before which a rank that has more works longer than the mean one on
    average, or a rank that has less shorter, and in proportion to that; where a rank does nothing there, everywhere.
    """
    usual_s = _mean_by_place(work_s, window, np.ones(window.events, dtype=np.bool_))
    more_s = work_s.sum(axis=0) - work_s.sum(axis=0).mean()
    apart_s = np.maximum((usual_s - _mean(usual_s)) * np.sign(more_s), 0.0)
    part = np.divide(apart_s, usual_s, out=np.zeros_like(usual_s), where=usual_s > 0)
    part[:, ~part.any(axis=0)] = 1.0
    total_s = (part * work_s).sum(axis=0)
    factor: Floats = 1.0 - part * np.divide(more_s, total_s, out=np.zeros_like(more_s), where=total_s > 0)
    return factor


def _not_above_usual(window: Window) -> Floats:
    """The factor that brings the orchestration of each rank down to that of the lower median rank, (ranks,)."""
    total_s = sum((window.per_step(name).sum(axis=0) for name in ORCHESTRATION), start=np.zeros(window.ranks))
    usual_s = lower_median(total_s)
    factor: Floats = np.divide(usual_s, total_s, out=np.ones_like(total_s), where=total_s > usual_s)
    return factor


def _changed(window: Window, phases: Collection[str], change: Callable[[Floats], Floats]) -> Window:
    work = {name: change(seconds) if name in phases else seconds for name, seconds in window.work.items()}
    lane = window.reductions
    if lane is not None and "backward" in phases:
        lane = replace(lane, lead_s=change(lane.lead_s))
    return replace(window, work=work, reductions=lane)


def _with(window: Window, parts: dict[str, Floats], more: Callable[[Floats], Floats]) -> dict[str, Floats]:
    """The work of ``window`` with ``more`` for each of ``parts``, never below 0, where rounding might take it."""
    return {
        name: np.maximum(seconds + more(parts[name]), 0.0) if name in parts else seconds
        for name, seconds in window.work.items()
    }


def _share(work: dict[str, Floats], ranks: int) -> Floats | None:
    """Work of each rank over that of the mean rank, shape (ranks,); None: there is none."""
    total = sum((seconds.sum(axis=0) for seconds in work.values()), start=np.zeros(ranks))
    mean = float(total.mean()) if ranks else 0.0
    return total / mean if mean > 0 else None


def _quotient(one: Floats, other: Floats) -> Floats:
    """``one`` divided by ``other``, and 1 where that is 0."""
    return np.divide(one, other, out=np.ones_like(one), where=other > 0)


def _median(seconds: Floats) -> Floats:
    middle: Floats = np.median(seconds, axis=-1, keepdims=True)
    return middle


def _mean(seconds: Floats) -> Floats:
    mean: Floats = seconds.mean(axis=-1, keepdims=True)
    return mean
