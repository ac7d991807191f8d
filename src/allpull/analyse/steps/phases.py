"""Split each step of each rank into disjoint phases that sum to its wall time (DESIGN §4, "Step level").

A rank arrives at the collective when its last gradient is ready, and is done when the reduced gradients are back; a
step may have several such reductions (``collectives.reductions``), and their times add up. With L = the last arrival
of all ranks::

    wait_r     = clip(min(L, done_r) − arrival_r, 0)     blocked before the last rank arrived ("Wait at N×N")
    transfer_r = max(0, done_r − max(L, arrival_r))      blocked after that
    backward_r = max(0, recorded backward − max(0, done_r − arrival_r))
    other_r    = max(0, wall_r − Σ of the phases known)

wait + transfer = max(0, done − arrival) for any L, so all that is subtracted from ``backward`` is counted there, and
the phases sum to the wall time exactly unless records overlap. Where they do, ``other`` is 0 and the closure error is
the excess of the phases over the wall time. Waiting is an upper bound while the network is busy with earlier buckets.

Collectives that the program calls, or that run inside forward (a broadcast of buffers, batch norm over ranks, FSDP),
are recorded outside all phases; each is matched across ranks and split (``analyse.collectives``), and its parts are
added to ``wait`` and ``transfer``. Unmatched ones are in ``other``, and a gap says how much.

What is unknown stays visible: a phase that no step measured is None, and its time is in ``other``; where only some
steps measured it, its mean counts the others as 0, their time is in ``other``, and a gap says how many. Without
arrivals ``backward`` includes the collectives inside it, and a gap says so. Phases that the user named are part of
``other``, except ``schema.steps.ROLLOUTS``, which are part of ``forward``. Where the clocks of hosts were aligned,
moments compare up to a bound, and a gap says so where waiting is less than that. ``host`` needs an accelerator's clock
(``analyse.steps.device``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.clock.shared_clock import share_a_clock
from allpull.analyse.collectives.waiting import wait_and_transfer
from allpull.analyse.steps.device import with_host
from allpull.analyse.steps.grid import Floats, Grid
from allpull.schema.gap import Gap
from allpull.units import show_time

__all__ = ["NAMES", "Called", "Phases", "share_a_clock", "split"]

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
"""All phases, in step order."""

Bools = NDArray[np.bool_]

EVERY_STEP = ("input", "copy", "forward", "backward", "optimizer")  # missing in one step: not measured, not 0
CLOCK_SLACK_S = 100e-6  # collective times come from another clock and caller; contradictions below this are rounding
SMALL_SHARE = 1e-3  # of a step: unmatched collectives below it are the cost of recording their ends


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """The phases of a grid.

    ``seconds`` maps each of ``NAMES`` to an array of shape (steps, ranks), or None where it was not measured;
    ``closure_error`` is the largest over ranks of |Σ phases − wall| ÷ wall, None where no time passed; ``violations``
    counts rank-steps whose collective times contradict each other or their backward; ``gaps``: what was not measured.
    """

    seconds: dict[str, Floats | None]
    closure_error: float | None
    violations: int
    gaps: tuple[Gap, ...]

    def means_s(self) -> dict[str, float | None]:
        """Seconds per step of each phase, mean over steps and ranks."""
        return {name: None if times is None else float(times.mean()) for name, times in self.seconds.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Called:
    """What collectives outside DDP's backward cost where they were matched, in seconds, shape (steps, ranks).

    ``most`` is how long a rank was blocked at most, matched or not: less than its calls took where some were only
    launched, and infinite where none was.
    """

    wait: Floats
    transfer: Floats
    most: Floats | float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Blocked:
    """Time blocked in collectives, shape (steps, ranks): the total, and its two parts where they are known.

    ``known`` is True where it was measured.
    """

    seconds: Floats
    known: NDArray[np.bool_]
    wait: Floats | None
    transfer: Floats | None
    violations: NDArray[np.bool_]


def split(
    grid: Grid,
    *,
    one_clock: bool,
    called: Called | None = None,
    reduces: bool = True,
    bound_s: float = 0.0,
    complete: bool = True,
) -> Phases:
    """The phases of every step and rank of ``grid``.

    Args:
        grid: steps of all ranks.
        one_clock: arrivals compare across ranks; where they do not, waiting and transfer are not separated.
        called: what matched collectives outside DDP's backward cost.
        reduces: whether gradients are reduced inside backward, so that arrivals there should be known.
        bound_s: how wrong moments of two ranks may compare.
        complete: these are all ranks of the job; where they are not, others may have come later.
    """
    if not grid.steps:
        return Phases(seconds=dict.fromkeys(NAMES), closure_error=None, violations=0, gaps=())
    blocked = _blocked(grid, compares=one_clock and complete, slack_s=CLOCK_SLACK_S + bound_s)
    calls = _called(grid, called)
    violations = blocked.violations | (blocked.seconds > grid.spans_s["backward"] + CLOCK_SLACK_S)
    seconds: dict[str, Floats | None] = dict.fromkeys(NAMES)
    for name, recorded in grid.spans_s.items():
        times = np.maximum(recorded - blocked.seconds, 0) if name == "backward" else recorded
        unknown = np.isnan(times)
        if not unknown.all():  # where all is known, the grid's own array: it may be large
            seconds[name] = np.where(unknown, 0.0, times) if unknown.any() else times
    seconds["wait"], seconds["transfer"] = _added(blocked.wait, calls.wait), _added(blocked.transfer, calls.transfer)
    seconds = with_host(
        seconds, reducing_s=blocked.seconds, called_s=calls.seconds, busy_s=grid.busy_s, wall_s=grid.wall_s
    )
    known = np.zeros_like(grid.wall_s)
    for phase_s in seconds.values():
        if phase_s is not None:
            known += phase_s
    other = grid.wall_s - known
    seconds["other"] = np.maximum(other, 0, out=other)
    known += other
    count = int(violations.sum())
    most, why = np.inf if called is None else called.most, _why_not(one_clock, complete)
    gaps = (
        *_gaps_of_spans(grid),
        *_gaps_of_collectives(grid, blocked, calls, most=most, why=why, reduces=reduces),
        *_gap_of_unmatched(grid, blocked),
        *_gap_of_violations(grid, count),
        *_gap_of_clocks(seconds["wait"], bound_s),
    )
    closure_error = _closure_error(known, grid.wall_s)
    return Phases(seconds=seconds, closure_error=closure_error, violations=count, gaps=gaps)


def _why_not(one_clock: bool, complete: bool) -> str:
    """Why waiting and transfer may not be separated."""
    if not complete:
        return "ranks of which nothing was recorded may have come later"
    return "no step has the arrivals of all ranks" if one_clock else "the clocks of the hosts are not aligned"


def _blocked(grid: Grid, *, compares: bool, slack_s: float) -> _Blocked:
    """Time between the arrival of a rank at each reduction of gradients and their return, all of a step together."""
    arrival, done = grid.arrival_s, grid.done_s
    known = ~np.isnan(arrival) & ~np.isnan(done)
    lasted = done - arrival
    backwards: Bools = np.any(known & (lasted < -CLOCK_SLACK_S), axis=0)
    np.maximum(lasted, 0, out=lasted)  # in place, as below: each of these arrays may be as large as a column of a run
    lasted[~known] = 0.0
    blocked = lasted.sum(axis=0)
    del lasted
    recorded: Bools = np.any(known, axis=0)
    if not recorded.any():
        alone = (
            np.zeros_like(blocked) if grid.ranks == 1 and compares else None
        )  # a single rank has no other to wait for: a true 0
        return _Blocked(seconds=blocked, known=recorded, wait=alone, transfer=alone, violations=backwards)
    whole = known.all(axis=2, keepdims=True) & grid.alike[:, :, None]  # the last arrival is known only with all others
    if not compares or not whole.any():
        return _Blocked(seconds=blocked, known=recorded, wait=None, transfer=None, violations=backwards)
    last = arrival.max(axis=2, keepdims=True)
    wait, transfer = (np.where(whole, times, 0.0).sum(axis=0) for times in wait_and_transfer(arrival, done, last))
    too_early: Bools = np.any(
        whole & (done < last - slack_s), axis=0
    )  # no rank can be done before the last one arrived
    return _Blocked(seconds=blocked, known=recorded, wait=wait, transfer=transfer, violations=backwards | too_early)


def _called(grid: Grid, called: Called | None) -> _Blocked:
    """Time blocked in other collectives, as recorded in steps, split as in ``called`` where that is known."""
    known = ~np.isnan(grid.called_s)
    seconds = np.nan_to_num(grid.called_s, nan=0.0)
    none = np.zeros(seconds.shape, dtype=np.bool_)
    if called is None or not known.any():
        return _Blocked(seconds=seconds, known=known, wait=None, transfer=None, violations=none)
    matched = called.wait + called.transfer
    kept = np.minimum(matched, seconds)  # ends are stamped twice: rounding
    np.divide(kept, matched, out=kept, where=matched > 0)
    wait, transfer = np.multiply(called.wait, kept, out=matched), np.multiply(called.transfer, kept, out=kept)
    return _Blocked(seconds=seconds, known=known, wait=wait, transfer=transfer, violations=none)


def _added(one: Floats | None, other: Floats | None) -> Floats | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _closure_error(phases: Floats, wall: Floats) -> float | None:
    total = wall.sum(axis=0)
    if not (total > 0).all():
        return None
    excess = phases - wall
    excess = np.abs(excess, out=excess).sum(axis=0)
    return float((excess / total).max())


def _gaps_of_spans(grid: Grid) -> Iterator[Gap]:
    for name in EVERY_STEP:
        absent = int(np.isnan(grid.spans_s[name]).sum())
        if 0 < absent < grid.wall_s.size:
            text = f"{name} was not measured in {_of(absent, grid)}: their time is in 'other'"
            yield Gap(kind="phase", text=text)


def _gap_of_unmatched(grid: Grid, blocked: _Blocked) -> Iterator[Gap]:
    """Reductions that the ranks of a step counted differently."""
    known = ~np.isnan(grid.arrival_s)
    apart = known & ~(known.all(axis=2, keepdims=True) & grid.alike[:, :, None])
    several = apart.any(axis=(0, 2)) & blocked.known.all(axis=1)
    if blocked.wait is not None and several.any():
        lost_s = float(np.where(apart, np.maximum(grid.done_s - grid.arrival_s, 0), 0).sum()) / grid.wall_s.size
        text = (
            f"in {int(several.sum()):,} of {grid.steps:,} steps ranks reduced gradients differently often, or of other "
            f"networks: 'other' holds the {show_time(lost_s)} per step that they were blocked there"
        )
        yield Gap(kind="blocked in other", text=text, seconds=lost_s)


def _gaps_of_collectives(
    grid: Grid, blocked: _Blocked, calls: _Blocked, *, most: Floats | float, why: str, reduces: bool
) -> Iterator[Gap]:
    recorded = bool(calls.known.any())
    if grid.ranks > 1 and not blocked.known.any() and not recorded:
        text = (
            "arrivals at collectives were not recorded: wait and transfer are not measured, and 'backward' holds them"
        )
        yield Gap(kind="arrivals", text=text)
        return
    lost_s = np.zeros_like(grid.wall_s)
    if blocked.wait is None and blocked.known.any():
        lost_s += blocked.seconds
    if calls.wait is None or calls.transfer is None:
        lost_s += calls.seconds
    if lost_s.any() or (blocked.wait is None and calls.wait is None):
        mean_s = float(lost_s.mean())
        lost = f"'other' holds the {show_time(mean_s)} per step that ranks were blocked"
        text = f"wait and transfer are not separated: {why}; {lost}"
        yield Gap(kind="blocked in other", text=text, seconds=mean_s)
    unknown = int((~blocked.known).sum())
    if grid.ranks > 1 and unknown and (reduces or not recorded or blocked.known.any()):
        text = f"arrivals at collectives were not recorded in {_of(unknown, grid)}: waiting in their steps is unknown"
        yield Gap(kind="arrivals", text=text)
    if calls.wait is not None and calls.transfer is not None:
        unmatched_s = np.minimum(calls.seconds, most)
        unmatched_s -= calls.wait
        unmatched_s -= calls.transfer
        np.maximum(unmatched_s, 0, out=unmatched_s)
        if unmatched_s.sum() > SMALL_SHARE * grid.wall_s.sum():
            mean_s = float(unmatched_s.mean())
            text = (
                f"'other' holds {show_time(mean_s)} per step in collectives that could not be matched across ranks, or "
                "that it took to issue asynchronous ones"
            )
            yield Gap(kind="blocked in other", text=text, seconds=mean_s)


def _gap_of_violations(grid: Grid, violations: int) -> Iterator[Gap]:
    if violations:
        text = (
            f"collective times contradict each other in {_of(violations, grid)}: they were clipped to what is possible"
        )
        yield Gap(kind="contradictions", text=text)


def _gap_of_clocks(wait: Floats | None, bound_s: float) -> Iterator[Gap]:
    if wait is not None and 0 < float(wait.mean()) < bound_s:
        wait_s = float(wait.mean())
        aligned = f"the clocks of the ranks are aligned to within {show_time(bound_s)}"
        text = f"waiting of {show_time(wait_s)} per step is not resolvable: {aligned}"
        yield Gap(kind="clock resolution", text=text, seconds=wait_s)


def _of(count: int, grid: Grid) -> str:
    return f"{count:,} of {grid.wall_s.size:,} rank-steps"
