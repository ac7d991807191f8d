"""What if this were gone? Each question makes another window of a window, and the replay answers it.

All are pure, and each is one call: ``replay(without_input(window)).total_s``. A ``without_…`` takes something away and
so can only shorten. The other questions stand in rooms of their own and are named here, so that all are in one place:
``levelled`` makes ranks alike, ``network`` changes transfers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.useful import sequential
from allpull.replay.whatif.balanced import (
    all_like_mean,
    all_like_median,
    like_median,
    without_persistence,
    without_rotation,
)
from allpull.replay.whatif.network import alone, faster, overlapped, with_buckets, with_network, without_transfer
from allpull.replay.window import CALL, Bools, Window

__all__ = [
    "all_like_mean",
    "all_like_median",
    "alone",
    "evaluation_spread",
    "faster",
    "like_median",
    "lower_median",
    "overlapped",
    "scaled",
    "with_buckets",
    "with_network",
    "without_calls",
    "without_common",
    "without_first_batches",
    "without_input",
    "without_orchestration",
    "without_persistence",
    "without_rotation",
    "without_sequential",
    "without_transfer",
    "without_work",
]

ORCHESTRATION = ("copy", "host", "other")
"""Neither useful nor waiting for anybody: copies, a device that the host leaves empty, work between phases."""


def without_work(window: Window, phases: Collection[str]) -> Window:
    """``phases`` take no time on any rank: without checkpoints; or with evaluation as a job of its own."""
    return replace(window, work={name: seconds for name, seconds in window.work.items() if name not in phases})


def lower_median(seconds: Floats) -> Floats:
    """The lower of the two middle values over ranks, (…, ranks) → (…,): what at least half of the ranks take.

    Of two ranks it is the smaller, where the median would give each half of what only one of them takes.

    >>> lower_median(np.array([[0.010, 0.040], [0.020, 0.010]]))
    array([0.01, 0.01])
    """
    place = (seconds.shape[-1] - 1) // 2
    middle: Floats = np.partition(seconds, place, axis=-1)[..., place]
    return middle


def without_common(window: Window, phases: Collection[str]) -> Window:
    """What ranks spend in ``phases`` alike is gone: in each step no more than what the lower median rank takes.

    What a rank takes beyond that stays: it is late by it, which is a loss of its own.
    """
    work = dict(window.work)
    for name in phases:
        if name in work:
            seconds = window.per_step(name)
            left_s = np.maximum(seconds - lower_median(seconds)[:, None], 0.0)
            left = np.divide(left_s, seconds, out=np.zeros_like(seconds), where=seconds > 0)
            work[name] = work[name] * left[window.step_of]
    return replace(window, work=work)


def without_input(window: Window) -> Window:
    """No rank ever waits for its loader."""
    return without_work(window, ("input",))


def without_orchestration(window: Window) -> Window:
    """The host and its copies cost nothing, nor does what happens between the phases."""
    return without_work(window, ORCHESTRATION)


def without_sequential(window: Window, phases: Collection[str] = ("evaluation", "checkpoint")) -> Window:
    """No rank does alone, in ``phases``, what the others wait for; see ``useful.sequential``."""
    gone = sequential(window)
    work = {
        name: seconds - gone[name] if name in gone and name in phases else seconds
        for name, seconds in window.work.items()
    }
    return replace(window, work=work)


def without_first_batches(window: Window, first: Bools | None = None) -> Window:
    """In the steps ``first``, (steps,), a rank waits for its loader no longer than it usually does.

    They are those that begin an epoch; None: all odd steps, of which these are some. Usual is the median over steps
    that are neither; without such steps nothing is known, and nothing changes.
    """
    first = window.odd if first is None else first
    usual = ~(window.odd | first)
    if "input" not in window.work or not first.any() or not usual.any():
        return window
    seconds = window.per_step("input")
    usual_s = np.median(seconds[usual], axis=0)
    kept = np.ones_like(seconds)
    np.divide(usual_s, seconds, out=kept, where=first[:, None] & (seconds > usual_s))
    return replace(window, work={**window.work, "input": window.work["input"] * kept[window.step_of]})


def without_calls(window: Window, uses: Collection[str]) -> Window:
    """The program does not call the collectives named in ``uses``: nobody waits there, nothing is transferred."""
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
    """``phases`` take ``factor`` times as long, on ``ranks`` (None: all): twice the loader workers, say, are 0.5.

    ``factor`` is one number, or one for each rank of the job, shape (ranks,). Where backward is among the phases, its
    buckets become ready as much sooner or later.
    """
    chosen = np.isin(np.arange(window.ranks), list(range(window.ranks) if ranks is None else ranks))
    factors = np.where(chosen, factor, 1.0)
    work = {name: seconds * factors if name in phases else seconds for name, seconds in window.work.items()}
    lane = window.reductions
    if lane is not None and "backward" in phases:
        lane = replace(lane, lead_s=lane.lead_s * factors)
    return replace(window, work=work, reductions=lane)


def evaluation_spread(window: Window) -> Window:
    """Evaluation that some ranks do is divided by the number of ranks, and all of them do it."""
    if "evaluation" not in window.work:
        return window
    alone_s = sequential(window)["evaluation"]
    shared_s = np.broadcast_to(alone_s.mean(axis=1, keepdims=True), alone_s.shape)
    return replace(window, work={**window.work, "evaluation": window.work["evaluation"] - alone_s + shared_s})
