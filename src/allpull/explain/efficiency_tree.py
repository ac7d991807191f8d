"""The efficiency tree: where the time of a window went, as factors that multiply back to it (DESIGN §4).

Each factor compares two replays, the second of which lacks one more kind of loss::

    T0 as recorded          T1 transfers take no time      T2 and no input wait
    T3 and no sequential work
    T4 and no copies, host gaps, other work, as far as ranks have them in common from one meeting to the next; beyond
         that they make a rank late
    T5 = max over ranks of their useful work and of what is left of copies, gaps and other work, beyond what the lower
         median rank has of these: ranks that are late in turn are not the same rank each step
    T6 = mean over ranks of their useful work

    transfer = T1/T0   input = T2/T1   sequential = T3/T2   orchestration = T4/T3
    serialisation = T5/T4   load balance = T6/T5   parallel = T6/T0, their product

Shortening can bring no moment later in a max-plus replay, so no factor is above 1. Transfer, serialisation and load
balance are those of the POP Centre (Wagner, Mohr, Giménez & Labarta 2017, "A structured approach to performance
analysis", IPTW), with T1 for the time on an ideal network; where a window contains only useful work and
collectives, they are the same numbers. The order of the factors matters, so each also has the gain if only its loss
were gone, from a separate replay.

Work is timed by one clock, and ranks are replayed by it from the begin of the window on. So clocks are compared only at
the ends of the window: their error counts once, not once per step, and widens the factors that compare the whole window
with less. Only the load balance compares no clocks.

Where only some ranks of a job were recorded, the others may have arrived later than all of them: how long ranks waited,
how much of it was transfer, and which rank was slow is unknown. Then nothing is replayed; times are those of the mean
rank, and one factor, collectives, stands for all time that it was blocked::

    collectives · input · sequential · orchestration = parallel
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.engine import Replay, event_times, replay
from allpull.replay.held_out import held_out_error
from allpull.replay.spread import Resampled, ratio, resample
from allpull.replay.useful import sequential, useful_s
from allpull.replay.whatif.balanced import without_persistence, without_rotation
from allpull.replay.whatif.network import single_rank, without_transfer
from allpull.replay.whatif.work import (
    ORCHESTRATION,
    lower_median,
    orchestration_excess_s,
    without_input,
    without_orchestration,
    without_sequential,
)
from allpull.replay.window import Kinds, Window
from allpull.schema.explained import Efficiency
from allpull.schema.results import Interval

REMOVALS = {
    "transfer": without_transfer,
    "input": without_input,
    "sequential": without_sequential,
    "orchestration": without_orchestration,
}
"""Factor → what the second of its two replays lacks, in the order of the tree."""

GAINS = {**REMOVALS, "serialisation": without_rotation, "load_balance": without_persistence}
"""Factor → the window in which only its loss is gone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeResult:
    """The tree of a window.

    ``efficiency`` is None, and ``gains`` are empty, where no useful work was recorded. ``gains``: factor → speed-up
    ratio if only its loss were gone. ``simulation_error`` is that of ``held_out_error``.
    ``replayed`` is the replay behind T0, ``useful_s`` (steps, ranks) the useful work.
    """

    efficiency: Efficiency | None
    gains: dict[str, float]
    simulation_error: float | None
    replayed: Replay
    useful_s: Floats


def tree(window: Window, reference: Window | None = None) -> TreeResult:
    """The efficiency tree of ``window``; against ``reference`` also computational scaling and global efficiency.

    A single rank has no other rank to wait for or to send to: its time in collectives is orchestration. Factors say
    what a wait for a batch takes as recorded; gains, that one is longer where nothing but the loader sets the pace.
    """
    limited = single_rank(window)
    base = replace(limited, deliveries=None)
    replayed = replay(base)
    work_s = useful_s(base)
    error = held_out_error(window)
    if not work_s.sum() > 0:
        return TreeResult(efficiency=None, gains={}, simulation_error=error, replayed=replayed, useful_s=work_s)
    if not window.complete:
        efficiency, gains = _of_some(window, work_s)
        return TreeResult(
            efficiency=efficiency, gains=gains, simulation_error=error, replayed=replayed, useful_s=work_s
        )
    increments = [replayed.step_s]
    ideal = base
    for removed in REMOVALS.values():
        ideal = removed(ideal)
        increments.append(replay(ideal).step_s)
    gains = {name: replayed.total_s / replay(removed(limited)).total_s for name, removed in GAINS.items()}
    efficiency = _efficiency(window, increments, work_s, None if reference is None else single_rank(reference))
    return TreeResult(efficiency=efficiency, gains=gains, simulation_error=error, replayed=replayed, useful_s=work_s)


def _efficiency(window: Window, increments: Sequence[Floats], work_s: Floats, reference: Window | None) -> Efficiency:
    """All factors; ``increments`` are those of the replays behind T0 to T4."""
    excess_s = orchestration_excess_s(window)
    t0, t4 = increments[0], increments[-1]
    clocks = window.bound_s / float(t0.sum()) if t0.sum() > 0 else 0.0
    factors = {
        name: _factor(ratio(after, before, window.odd_kinds), clocks)
        for name, (before, after) in zip(REMOVALS, pairwise(increments), strict=True)
    }
    computational, whole = _scaling(window, t0, work_s, reference)
    return Efficiency.model_validate(
        {
            **factors,
            "serialisation": _factor(_serialisation(work_s, excess_s, t4, window.odd_kinds), clocks),
            "load_balance": _factor(_load_balance(work_s, excess_s, window.odd_kinds)),
            "parallel": _factor(ratio(work_s.mean(axis=1), t0, window.odd_kinds), clocks),
            "computational": computational,
            "global": whole,
        }
    )


def _of_some(window: Window, work_s: Floats) -> tuple[Efficiency, dict[str, float]]:
    """The factors and gains that follow from some ranks of a job alone; ``work_s`` (steps, ranks) is useful work."""
    blocked_s = window.sums(event_times(window).blocked_s)
    alone_s = window.sums(*sequential(window).values())
    lost = {
        "collectives": blocked_s.mean(axis=1),
        "input": window.per_step("input").mean(axis=1),
        "sequential": alone_s.mean(axis=1),
        "orchestration": sum(window.per_step(name).mean(axis=1) for name in ORCHESTRATION),
    }
    left_s = [work_s.mean(axis=1)]
    for seconds in reversed(lost.values()):
        left_s.insert(0, left_s[0] + seconds)
    whole_s = float(left_s[0].sum())
    factors = {
        name: _factor(ratio(after, before, window.odd_kinds))
        for name, (before, after) in zip(lost, pairwise(left_s), strict=True)
    }
    unknown = dict.fromkeys(("transfer", "serialisation", "load_balance", "computational", "global"))
    parallel = _factor(ratio(left_s[-1], left_s[0], window.odd_kinds))
    gains = {name: whole_s / (whole_s - float(seconds.sum())) for name, seconds in lost.items()}
    return Efficiency.model_validate({**unknown, **factors, "parallel": parallel}), gains


def _factor(resampled: Resampled, clocks: float = 0.0) -> Interval:
    """``resampled`` as a factor: rounding may have taken it above 1 by the last digit.

    ``clocks``: how wrong the clocks make it.
    """
    shown = resampled.interval(most=1.0)
    low = None if shown.low is None else max(min(shown.low, 1.0) - clocks, 0.0)
    high = None if shown.high is None else min(shown.high + clocks, 1.0)
    return Interval(value=min(shown.value, 1.0), low=low, high=high)


def _serialisation(work_s: Floats, excess_s: Floats, t4: Floats, odd: Kinds) -> Resampled:
    """T5/T4: the work of the busiest rank, with what makes it late, over the time that it and meetings would take."""
    busiest = _of_busiest(work_s, excess_s)
    return resample(
        np.column_stack([t4, work_s, excess_s]),
        odd,
        lambda totals: _busiest(totals[..., 1:]) / totals[..., 0],
        moves=busiest - busiest.sum() / t4.sum() * t4,
    )


def _load_balance(work_s: Floats, excess_s: Floats, odd: Kinds) -> Resampled:
    """T6/T5: the useful work of the mean rank over all that keeps the busiest from the next meeting."""
    busiest = _of_busiest(work_s, excess_s)
    mean = work_s.mean(axis=1)
    return resample(
        np.column_stack([mean, work_s, excess_s]),
        odd,
        lambda totals: totals[..., 0] / _busiest(totals[..., 1:]),
        moves=mean - mean.sum() / busiest.sum() * busiest,
    )


def _busiest(totals_s: Floats) -> Floats:
    """T5 from the useful work of each rank, and then the excess of each, (…, 2 · ranks) → (…,)."""
    work_s, excess_s = np.split(totals_s, 2, axis=-1)
    most: Floats = (work_s + np.maximum(excess_s - lower_median(excess_s)[..., None], 0.0)).max(axis=-1)
    return most


def _of_busiest(work_s: Floats, excess_s: Floats) -> Floats:
    """What each step adds to T5, (steps,)."""
    totals_s = excess_s.sum(axis=0)
    usual = int(np.argsort(totals_s, kind="stable")[(totals_s.size - 1) // 2])
    own_s = np.where(totals_s > totals_s[usual], excess_s - excess_s[:, [usual]], 0.0)
    busy_s = work_s + own_s
    busiest: Floats = busy_s[:, busy_s.sum(axis=0).argmax()]
    return busiest


def _scaling(
    window: Window, t0: Floats, work_s: Floats, reference: Window | None
) -> tuple[Interval | None, Interval | None]:
    """Computational scaling and global efficiency against ``reference``; None where samples are not known.

    Computational scaling is useful work per sample there over that here. Global efficiency is it times the parallel
    efficiency by the measured time, not the replayed one, so that its ratio between two sizes is exactly the measured
    speed-up over the ideal one: (samples/T)/(samples_ref/T_ref) ÷ (N/N_ref).
    """
    if reference is None:
        return None, None
    work_ref_s = useful_s(reference).sum(axis=1)
    samples, samples_ref = window.samples.sum(axis=1), reference.samples.sum(axis=1)
    known = (float(total) for total in (samples.sum(), samples_ref.sum(), work_ref_s.sum()))
    if not all(total > 0 for total in known) or not window.measured_s > 0:
        return None, None
    per_sample_ref = ratio(work_ref_s, samples_ref, reference.odd_kinds, seed=1)
    computational = ratio(samples, work_s.sum(axis=1), window.odd_kinds).product(per_sample_ref)
    rate = ratio(samples, t0, window.odd_kinds).times(float(t0.sum()) / window.measured_s / window.ranks)
    return computational.interval(), rate.product(per_sample_ref).interval()
