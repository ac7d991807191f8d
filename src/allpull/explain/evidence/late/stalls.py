"""What held up whole ranks, as they recorded it: garbage collection, compilation, retries of CUDA's allocator.

Where all ranks are held up in the same step, no rank is late. One that is held up alone is late for a known reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.late.outliers import Outlier, mean_interval, outliers
from allpull.replay.leave_one_out import beyond_others
from allpull.rundir.read.run import RunData
from allpull.units import NS_PER_S

CAUSES = COLLECTION, COMPILATION, RETRIES = "garbage_collection", "compilation", "allocator_retries"
SOURCE = "stalls"  # in the headers of ranks that record them
LEAST = 0.1  # of the lost time: a cause that covers less is not named
MOST = 0.5  # of the lost time: causes that cover less together do not explain it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stalls:
    """Cause → seconds of its stalls, (steps, ranks), infinite where they were not measured.

    ``recorded``: whether all ranks would have recorded a stall.
    """

    seconds: Mapping[str, Floats] = field(default_factory=dict)
    recorded: bool = False


def stalls_of(run: RunData, steps: NDArray[np.int64]) -> Stalls:
    """The stalls of ``run`` in ``steps``, which are ascending."""
    ranks = run.record.ranks
    seconds: dict[str, Floats] = {}
    for rank, log in run.events.items():
        for stall in log.stalls:
            place = int(np.searchsorted(steps, stall.step))
            is_inside = place < steps.size and steps[place] == stall.step
            if is_inside and stall.cause in CAUSES:  # a later version may record others
                by_rank = seconds.setdefault(stall.cause, np.zeros((steps.size, ranks)))
                by_rank[place, rank] += np.inf if stall.duration_ns is None else stall.duration_ns / NS_PER_S
    recorded = len(run.headers) == ranks and all(SOURCE in header.sources for header in run.headers.values())
    return Stalls(seconds=seconds, recorded=recorded)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldUp:
    """The ``ranks`` that are late because of their own stalls, the latest first; sizes are those of the stalls alone.

    ``causes``: rank → cause → share of its lateness, the largest first. ``seconds`` (steps, ranks): how long each of
    them is held up beyond the others; 0 for other ranks.
    """

    ranks: tuple[Outlier, ...] = ()
    causes: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    seconds: Floats | None = None

    @property
    def late(self) -> frozenset[int]:
        """The numbers of the ranks."""
        return frozenset(one.rank for one in self.ranks)

    def beside(self, own_s: Floats, waited_s: Floats) -> Floats:
        """How much of ``waited_s`` is not part of stalls, of ranks that work ``own_s``; all (steps, ranks).

        In a step with a stall it is no more than usual, nor than in proportion to time.
        """
        if self.seconds is None:
            return waited_s
        share = np.divide(self.seconds, own_s, out=np.zeros_like(own_s), where=own_s > 0)
        beside_s: Floats = waited_s * (1 - share)
        for rank in self.late:
            stalls = self.seconds[:, rank] > 0
            if not stalls.all():
                beside_s[stalls, rank] = np.minimum(beside_s[stalls, rank], np.median(waited_s[~stalls, rank]))
        return beside_s


def held_up_alone(own_s: Floats, stalls: Stalls, least_s: float) -> HeldUp:
    """The ranks whose ``own_s`` (steps, ranks) stands out, most of it by ``stalls``; by ``least_s`` per step or more.

    A stall counts as far as the rank works longer than the others in that step: compilation in another thread delays
    nothing, and what all ranks have in common makes none late. Where a stall covers most of the excess of a step, what
    the rank takes beyond its usual excess belongs to it: cold caches, and kernels that are tuned or captured again.
    """
    if not stalls.seconds or own_s.shape[1] < 2:
        return HeldUp()
    excess_s = np.maximum(beyond_others(own_s), 0.0)
    stalled_s = _with_after_effects(excess_s, sum(stalls.seconds.values(), start=np.zeros_like(excess_s)))
    late, causes = [], {}
    for one in outliers(own_s).ranks:
        mine_s, size = stalled_s[:, one.rank], mean_interval(stalled_s[:, one.rank])
        covered = explained_shares(
            excess_s[:, one.rank], {cause: seconds[:, one.rank] for cause, seconds in stalls.seconds.items()}
        )
        if covered and size.value >= least_s:
            late.append(Outlier(rank=one.rank, size=size, steady=bool(np.median(mine_s) > 0)))
            causes[one.rank] = covered
    if not late:
        return HeldUp()
    chosen = np.isin(np.arange(own_s.shape[1]), list(causes))
    return HeldUp(
        ranks=tuple(sorted(late, key=lambda one: -one.size.value)),
        causes=causes,
        seconds=np.where(chosen, stalled_s, 0.0),
    )


def _with_after_effects(excess_s: Floats, paused_s: Floats) -> Floats:
    """How long ranks are held up beyond the others by ``paused_s``, as recorded; all (steps, ranks)."""
    recorded_s: Floats = np.minimum(excess_s, paused_s)
    held_s = recorded_s.copy()
    for rank in np.flatnonzero(recorded_s.any(axis=0)):
        stalls = recorded_s[:, rank] > 0
        usual_s = 0.0 if stalls.all() else float(np.median(excess_s[~stalls, rank]))
        most = recorded_s[:, rank] >= MOST * excess_s[:, rank]
        whole_s = np.maximum(recorded_s[:, rank], excess_s[:, rank] - usual_s)
        held_s[:, rank] = np.where(stalls & most, whole_s, recorded_s[:, rank])
    return held_s


def explained_shares(lost_s: Floats, paused_s: Mapping[str, Floats]) -> dict[str, float]:
    """Cause → share of ``lost_s`` (any shape) that its ``paused_s`` (same shape) cover, the largest first.

    Empty where they do not explain it.

    >>> explained_shares(np.array([2.0, 2.0]), {"garbage_collection": np.array([1.5, 3.0])})
    {'garbage_collection': 0.875}
    """
    total_s = float(lost_s.sum())
    if total_s <= 0:
        return {}
    covered = {cause: float(np.minimum(lost_s, seconds).sum()) / total_s for cause, seconds in paused_s.items()}
    shares = {cause: share for cause, share in covered.items() if share >= LEAST}
    if sum(shares.values()) < MOST:
        return {}
    return dict(sorted(shares.items(), key=lambda one: -one[1]))
