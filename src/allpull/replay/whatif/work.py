"""What if work took another time, or none? A ``without_…`` removes something, and so can only shorten the replay.

All are pure, and each is one call: ``replay(without_input(window)).total_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.leave_one_out import beyond_others
from allpull.replay.useful import COMPUTE, sequential
from allpull.replay.window import CALL, REDUCE, Bools, Window

ORCHESTRATION = ("copy", "host", "other")
"""Neither useful nor waiting: copies, a device left idle by its host, work between phases."""


def without_work(window: Window, phases: Collection[str]) -> Window:
    """``phases`` take no time on any rank: no checkpoints, say, or evaluation as a separate job."""
    return replace(window, work={name: seconds for name, seconds in window.work.items() if name not in phases})


def lower_median(seconds: Floats) -> Floats:
    """The lower of the two middle values over ranks, (…, ranks) → (…,): at least half of the ranks take that long.

    Of two ranks it is the smaller one, where the median would charge each with half of what only one of them takes.

    >>> lower_median(np.array([[0.010, 0.040], [0.020, 0.010]]))
    array([0.01, 0.01])
    """
    place = (seconds.shape[-1] - 1) // 2
    middle: Floats = np.partition(seconds, place, axis=-1)[..., place]
    return middle


def without_common(
    window: Window, phases: Collection[str], inside: Collection[str] = ("forward", "backward"), share: float = 1.0
) -> Window:
    """The time that ranks have in common in ``phases`` is gone: in each round up to that of the lower median rank.

    What a rank takes beyond that stays: it makes the rank late, which is a separate loss. ``share``: that much of it.

    A device that is left idle by its host (``host``) is so in forward and backward, too, where the gradients of its
    first buckets are reduced meanwhile: without it they are ready that much less ahead of the last. Where in a step it
    is idle is not recorded: ``inside`` are the phases among which that time is spread in proportion, before a
    reduction.
    """
    work = dict(window.work)
    for name in phases:
        if name in work:
            work[name] = work[name] * _uncommon(window, name, share)
    lane = window.reductions
    if lane is not None and "host" in work and "host" in phases and window.on_device:
        gone_s = window.work["host"] - work["host"]
        denser = _denser(window, gone_s, window.work["host"] * _uncommon(window, "host", 1.0), inside)
        lane = replace(lane, lead_s=lane.lead_s * denser[:, None, :])
    return replace(window, work=work, reductions=lane)


def _uncommon(window: Window, name: str, share: float) -> Floats:
    """The share of phase ``name`` that is left without that ``share`` of what ranks have in common, (events, ranks)."""
    seconds = per_round(window, name)
    left_s = np.maximum(seconds - share * lower_median(seconds)[:, None], 0.0)
    left = np.divide(left_s, seconds, out=np.zeros_like(seconds), where=seconds > 0)
    uncommon: Floats = left[window.round_of[window.step_of]]
    return uncommon


def _denser(window: Window, gone_s: Floats, stays_s: Floats, inside: Collection[str]) -> Floats:
    """By what the phases ``inside`` and idle time among them become shorter before each reduction, (reductions, ranks).

    ``gone_s`` and ``stays_s`` (events, ranks): of the idle time among them.
    """
    reduces = window.kind == REDUCE
    busy_s = sum((window.work[name][reduces] for name in inside if name in window.work), start=stays_s[reduces])
    whole_s = busy_s + gone_s[reduces]
    denser: Floats = np.divide(busy_s, whole_s, out=np.ones_like(whole_s), where=(whole_s > 0) & bool(inside))
    return denser


def per_round(window: Window, name: str) -> Floats:
    """Seconds of phase ``name`` from one meeting of the ranks to the next, (rounds, ranks)."""
    return np.add.reduceat(window.per_step(name), np.flatnonzero(np.diff(window.round_of, prepend=-1)), axis=0)


def without_part(window: Window, phase: str, gone_s: Floats) -> Window:
    """A known part of ``phase`` is gone: ``gone_s`` (steps, ranks), at most all of it."""
    seconds = window.per_step(phase)
    left = np.divide(np.maximum(seconds - gone_s, 0.0), seconds, out=np.ones_like(seconds), where=seconds > 0)
    return shortened_by_step(window, {phase: left})


def without_stalls(window: Window, stalls: Bools, phases: Collection[str]) -> Window:
    """In the steps ``stalls``, (steps,), ranks have no more work in common in ``phases`` than in the median other step.

    What a rank takes beyond the others stays. Where backward becomes shorter, its buckets are ready that much earlier.
    """
    kept: dict[str, Floats] = {}
    for name in phases:
        if name in window.work:
            seconds = window.per_step(name)
            common_s = lower_median(seconds)
            excess_s = np.where(stalls, np.maximum(common_s - np.median(common_s[~stalls]), 0.0), 0.0)[:, None]
            left_s = np.maximum(seconds - excess_s, 0.0)
            kept[name] = np.divide(left_s, seconds, out=np.ones_like(seconds), where=seconds > 0)
    return shortened_by_step(window, kept)


def by_excess(phases_s: Mapping[str, Floats], gone_s: Floats) -> dict[str, Floats]:
    """``gone_s`` of each step, shared out among ``phases_s`` by how much a rank exceeds the others in each.

    All (steps, ranks).
    """
    excess = {name: np.maximum(beyond_others(seconds), 0.0) for name, seconds in phases_s.items()}
    total_s = sum(excess.values(), start=np.zeros_like(gone_s))
    part = np.divide(np.minimum(gone_s, total_s), total_s, out=np.zeros_like(gone_s), where=total_s > 0)
    return {name: part * seconds for name, seconds in excess.items()}


def shorter_by(window: Window, gone_s: Mapping[str, Floats]) -> Window:
    """``window`` with phases shorter by ``gone_s``, phase → (steps, ranks), as far as they last that long."""
    kept = {}
    for name, gone in gone_s.items():
        if name in window.work:
            seconds = window.per_step(name)
            left_s = np.maximum(seconds - gone, 0.0)
            kept[name] = np.divide(left_s, seconds, out=np.ones_like(seconds), where=seconds > 0)
    return shortened_by_step(window, kept)


def without_pacing(window: Window, most_s: float = np.inf) -> Window:
    """Devices never wait for their hosts to issue work: what passed while hosts were still issuing takes no time.

    What a device computed meanwhile is not known, so no window is shorter. ``most_s``: for how long it can have had no
    work at most, s per step.
    """
    share = paced_share(window, most_s)
    return window if share is None else shortened_by_step(window, dict.fromkeys(COMPUTE, 1.0 - share))


def compute_s(window: Window) -> Floats:
    """How long forward, backward and optimizer last, s, (steps, ranks)."""
    return sum((window.per_step(name) for name in COMPUTE), start=np.zeros(window.wall_s.shape))


def paced_share(window: Window, most_s: Floats | float = np.inf) -> Floats | None:
    """The share of computation that passed while the host was still issuing it, (steps, ranks); None: not known.

    ``most_s``: no more than that per step counts; one number, or (steps, ranks).
    """
    if window.paced_s is None:
        return None
    computed_s = compute_s(window)
    share: Floats = np.divide(
        np.minimum(np.minimum(window.paced_s, most_s), computed_s),
        computed_s,
        out=np.zeros_like(computed_s),
        where=computed_s > 0,
    )
    return share


def shortened_by_step(window: Window, kept: Mapping[str, Floats]) -> Window:
    """``window`` with phases ``kept`` times as long, phase → (steps, ranks) or (steps, 1)."""
    work = {
        name: seconds * kept[name][window.step_of] if name in kept else seconds for name, seconds in window.work.items()
    }
    lane = window.reductions
    if lane is not None and "backward" in kept:
        reduces = window.step_of[window.kind == REDUCE]
        lane = replace(lane, lead_s=lane.lead_s * kept["backward"][reduces][:, None, :])
    return replace(window, work=work, reductions=lane)


def without_input(window: Window) -> Window:
    """No rank ever waits for its loader."""
    return without_work(window, ("input",))


def without_orchestration(window: Window) -> Window:
    """Host gaps, copies and work between the phases take no time, as far as ranks have them in common.

    What a rank takes beyond that makes it late, as longer computation does.
    """
    return without_common(window, ORCHESTRATION)


def orchestration_excess_s(window: Window) -> Floats:
    """What ``without_orchestration`` leaves of these phases, s, (steps, ranks)."""
    left = without_orchestration(window)
    return sum((left.per_step(name) for name in ORCHESTRATION), start=np.zeros((window.steps.size, window.ranks)))


def without_sequential(
    window: Window,
    phases: Collection[str] = ("evaluation", "checkpoint"),
    part: Callable[[Window], dict[str, Floats]] = sequential,
) -> Window:
    """No sequential work in ``phases``, or no ``part`` of it: no rank works alone while the others wait."""
    gone = part(window)
    work = {
        name: seconds - gone[name] if name in gone and name in phases else seconds
        for name, seconds in window.work.items()
    }
    return replace(window, work=work)


def without_first_batches(window: Window, first: Bools | None = None, least_s: Floats | float = 0.0) -> Window:
    """In the steps ``first``, (steps,), a rank waits for its loader no longer than usual, or than ``least_s`` (ranks,).

    ``first`` are the steps that begin an epoch; None: all odd steps, which include those. Usual is the median over the
    other steps; where there are none, nothing changes.
    """
    first = window.odd if first is None else first
    usual = ~(window.odd | first)
    if "input" not in window.work or not first.any() or not usual.any():
        return window
    seconds = window.per_step("input")
    usual_s = np.maximum(np.median(seconds[usual], axis=0), least_s)
    kept = np.ones_like(seconds)
    np.divide(usual_s, seconds, out=kept, where=first[:, None] & (seconds > usual_s))
    return shortened_by_step(window, {"input": kept})


def without_calls(window: Window, uses: Collection[str]) -> Window:
    """The program does not call the collectives named in ``uses``: no waiting and no transfer there."""
    gone = np.array([name in uses for name in window.uses], dtype=np.bool_)
    if not gone.any():
        return window
    kept: Bools = ~((window.kind == CALL) & gone[window.use])[:, None]
    return replace(
        window,
        meets=window.meets & kept,
        waits=window.waits & kept,
        early_s=window.early_s * kept,
        transfer_s=window.transfer_s * kept,
    )


def scaled(
    window: Window, phases: Collection[str], factor: float | Floats, ranks: Collection[int] | None = None
) -> Window:
    """``phases`` take ``factor`` times as long, on ``ranks`` (None: all): 0.5 for twice the loader workers, say.

    ``factor`` is one number, or one per rank of the job, shape (ranks,). Where backward is among the phases, its
    buckets become ready earlier or later by the same factor.
    """
    chosen = np.isin(np.arange(window.ranks), list(range(window.ranks) if ranks is None else ranks))
    factors = np.where(chosen, factor, 1.0)
    work = {name: seconds * factors if name in phases else seconds for name, seconds in window.work.items()}
    lane = window.reductions
    if lane is not None and "backward" in phases:
        lane = replace(lane, lead_s=lane.lead_s * factors)
    return replace(window, work=work, reductions=lane)


def evenly(window: Window, phase: str, part_s: Floats | None = None) -> Window:
    """The work of all ranks in ``phase`` is shared out evenly among them, or ``part_s`` (events, ranks) of it."""
    if phase not in window.work:
        return window
    seconds = window.work[phase]
    part_s = seconds if part_s is None else part_s
    return replace(window, work={**window.work, phase: seconds - part_s + part_s.mean(axis=1, keepdims=True)})


def evaluation_spread(window: Window, part: Callable[[Window], dict[str, Floats]] = sequential) -> Window:
    """Evaluation is shared out evenly among all ranks: that on some of them, or with ``useful`` that by all of them."""
    part_s = part(window).get("evaluation")
    return window if part_s is None else evenly(window, "evaluation", part_s)
