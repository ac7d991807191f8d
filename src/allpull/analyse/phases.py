"""Split each step of each rank into disjoint phases that sum to its wall time (DESIGN §4, "Step level").

A rank arrives at the collective when its last gradient is ready, and is done when the reduced gradients are back.
With L = the last arrival of all ranks::

    wait_r     = clip(min(L, done_r) − arrival_r, 0)     blocked before the last rank arrived ("Wait at N×N")
    transfer_r = max(0, done_r − max(L, arrival_r))      blocked after that
    backward_r = max(0, recorded backward − max(0, done_r − arrival_r))
    other_r    = max(0, wall_r − Σ of the phases known)

wait + transfer = max(0, done − arrival) whatever L is, so what leaves ``backward`` arrives in full, and the phases sum
to the wall time exactly unless records overlap. Where they do, ``other`` is 0 and the closure error says by how much
the phases exceed the wall time. Waiting is an upper bound while the network is busy with earlier buckets.

What is not known stays visible: a phase that no step measured is None, and its time is in ``other``; where only some
steps measured it, its mean takes the others as 0, their time is in ``other``, and a gap says how many. Without
arrivals ``backward`` keeps the collectives inside it, and a gap says that too. Phases of the user's own are part of
``other``. ``host`` (device empty while the host issues work) needs an accelerator's clock and is None here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.grid import Floats, Grid
from allpull.schema.steps import StepsHeader
from allpull.units import show_time

NAMES = (
    "input",
    "copy",
    "forward",
    "backward",
    "wait",
    "transfer",
    "optimizer",
    "evaluation",
    "checkpoint",
    "host",
    "other",
)
"""All phases, in the order of a step."""

EVERY_STEP = ("input", "copy", "forward", "backward", "optimizer")  # absent in one step: not measured, not "none"
CLOCK_SLACK_S = 100e-6  # collective times come from another clock and caller; contradictions below this are rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """The phases of a grid.

    ``seconds`` maps each of ``NAMES`` to an array of shape (steps, ranks), or None where it was not measured;
    ``closure_error`` is the largest over ranks of |Σ phases − wall| ÷ wall, None where no time passed; ``violations``
    counts rank-steps whose collective times contradict each other or their backward; ``gaps`` is in words.
    """

    seconds: dict[str, Floats | None]
    closure_error: float | None
    violations: int
    gaps: tuple[str, ...]

    def means_s(self) -> dict[str, float | None]:
        """Seconds per step of each phase, mean over steps and ranks."""
        return {name: None if times is None else float(times.mean()) for name, times in self.seconds.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Blocked:
    """Time blocked in collectives, shape (steps, ranks): in all, and its two parts where they can be told apart."""

    seconds: Floats
    known: NDArray[np.bool_]
    wait: Floats | None
    transfer: Floats | None
    violations: NDArray[np.bool_]


def share_a_clock(headers: Iterable[StepsHeader]) -> bool:
    """Whether the times of all these ranks come from one monotonic clock: one boot of one host.

    Where the system does not name its boot, one host name stands for it.
    """
    clocks = {(header.boot_id, header.host if header.boot_id is None else None) for header in headers}
    return len(clocks) <= 1


def split(grid: Grid, *, one_clock: bool) -> Phases:
    """The phases of every step and rank of ``grid``.

    ``one_clock``: arrivals compare across ranks; where they do not, waiting and transfer cannot be told apart.
    """
    if not grid.steps:
        return Phases(seconds=dict.fromkeys(NAMES), closure_error=None, violations=0, gaps=())
    blocked = _blocked(grid, one_clock=one_clock)
    violations = blocked.violations | (blocked.seconds > grid.spans_s["backward"] + CLOCK_SLACK_S)
    seconds: dict[str, Floats | None] = dict.fromkeys(NAMES)
    for name, recorded in grid.spans_s.items():
        times = np.maximum(recorded - blocked.seconds, 0) if name == "backward" else recorded
        seconds[name] = None if np.isnan(times).all() else np.nan_to_num(times, nan=0.0)
    seconds["wait"], seconds["transfer"] = blocked.wait, blocked.transfer
    known = sum((times for times in seconds.values() if times is not None), start=np.zeros_like(grid.wall_s))
    seconds["other"] = other = np.maximum(grid.wall_s - known, 0)
    count = int(violations.sum())
    return Phases(
        seconds=seconds,
        closure_error=_closure_error(known + other, grid.wall_s),
        violations=count,
        gaps=(*_gaps_of_spans(grid), *_gaps_of_collectives(grid, blocked, count, one_clock=one_clock)),
    )


def _blocked(grid: Grid, *, one_clock: bool) -> _Blocked:
    arrival, done = grid.arrival_s, grid.done_s
    known = ~np.isnan(arrival) & ~np.isnan(done)
    blocked = np.where(known, np.maximum(done - arrival, 0), 0.0)
    backwards = known & (done - arrival < -CLOCK_SLACK_S)
    if not known.any():
        alone = np.zeros_like(blocked) if grid.ranks == 1 else None  # one rank has nobody to wait for: a true 0
        return _Blocked(seconds=blocked, known=known, wait=alone, transfer=alone, violations=backwards)
    whole = known.all(axis=1, keepdims=True)  # the last arrival is known only where all arrivals are
    if not one_clock or not whole.any():
        return _Blocked(seconds=blocked, known=known, wait=None, transfer=None, violations=backwards)
    last = arrival.max(axis=1, keepdims=True)
    wait = np.where(whole, np.maximum(np.minimum(last, done) - arrival, 0), 0.0)
    transfer = np.where(whole, np.maximum(done - np.maximum(last, arrival), 0), 0.0)
    too_early = whole & (done < last - CLOCK_SLACK_S)  # nobody can be done before the last has arrived
    return _Blocked(seconds=blocked, known=known, wait=wait, transfer=transfer, violations=backwards | too_early)


def _closure_error(phases: Floats, wall: Floats) -> float | None:
    total = wall.sum(axis=0)
    if not (total > 0).all():
        return None
    excess = np.abs(phases - wall).sum(axis=0)
    return float((excess / total).max())


def _gaps_of_spans(grid: Grid) -> Iterator[str]:
    for name in EVERY_STEP:
        absent = int(np.isnan(grid.spans_s[name]).sum())
        if 0 < absent < grid.wall_s.size:
            yield f"{name} was not measured in {_of(absent, grid)}: their time is in 'other'"


def _gaps_of_collectives(grid: Grid, blocked: _Blocked, violations: int, *, one_clock: bool) -> Iterator[str]:
    if grid.ranks > 1 and not blocked.known.any():
        yield "arrivals at collectives were not recorded: wait and transfer are not measured, and 'backward' holds them"
        return
    if blocked.wait is None:
        reason = "no step has the arrivals of all ranks" if one_clock else "the clocks of the hosts are not aligned"
        lost = f"'other' holds the {show_time(float(blocked.seconds.mean()))} a step that ranks were blocked"
        yield f"wait and transfer are not told apart: {reason}; {lost}"
    unknown = int((~blocked.known).sum())
    if grid.ranks > 1 and unknown:
        yield f"arrivals at collectives were not recorded in {_of(unknown, grid)}: no waiting is known in their steps"
    if violations:
        yield f"collective times contradict each other in {_of(violations, grid)}: they were cut to what is possible"


def _of(count: int, grid: Grid) -> str:
    return f"{count:,} of {grid.wall_s.size:,} rank-steps"
