"""Cut a window to whole periods: of epochs, and of evaluations and checkpoints that come every so many steps.

What occurs every p steps occurs ⌊n/p⌋ or ⌈n/p⌉ times in n steps, depending on where the window begins. Where n is a
multiple of p it occurs as often as in the long run, so its cost is right and not random.

Whole periods may be much fewer steps: of two epochs the first lacks the warm-up, and with it half of the run would be
left out. Where what occurs once too often, or too seldom, costs little, no step is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

ROLLOUT = "rollout"
PERIODIC = ("evaluation", "checkpoint", ROLLOUT)
"""What may recur periodically, by the name of its column."""

FEW_LEFT_OUT = 0.25  # of the steps: so many may be cut to have whole periods
SMALL_ERROR = 0.01  # of the time of the steps: what occurs too often in them, or too seldom, may cost so much


def whole_periods(rows: slice, table: pl.DataFrame) -> slice:
    """The last rows of ``rows`` that make up whole periods; all rows where no period fits, or a cut costs too much.

    ``table`` has the columns step, epoch, wall (ns), first_batch and those of ``PERIODIC``, one row per step. Periods
    that do not all fit into ``rows`` are tried in turn: epochs first, then evaluations, then checkpoints.
    """
    count, length = rows.stop - rows.start, 1
    periods = dict(_periods(table))
    for period in periods.values():
        common = math.lcm(length, period)
        if common <= count:
            length = common
    left_out = count % length
    if left_out > FEW_LEFT_OUT * count and _error(table[rows], periods) <= SMALL_ERROR:
        return rows
    return slice(rows.start + left_out, rows.stop)


def _error(table: pl.DataFrame, periods: Mapping[str, int]) -> float:
    """What recurs in ``periods`` of steps, but more or less often in ``table``, costs this share of its time.

    Steps with several of it are shared among these.
    """
    wall_ns, error_ns = table["wall"].to_numpy(), 0.0
    several = np.maximum(sum(table[tag].to_numpy().astype(np.intp) for tag in periods), 1)
    more_ns = np.maximum(wall_ns - float(np.median(wall_ns)), 0.0) / several
    for tag, period in periods.items():
        there = table[tag].to_numpy()
        if there.any():
            error_ns += abs(int(there.sum()) - there.size / period) * float(more_ns[there].mean())
    return error_ns / max(1.0, float(wall_ns.sum()))


def _periods(table: pl.DataFrame) -> Iterator[tuple[str, int]]:
    """What recurs in a run, by the name of its column, with its period in steps."""
    steps = table["step"].to_numpy()
    epoch = table["epoch"].to_numpy()
    begins = np.flatnonzero(np.diff(epoch)) + 1
    if epoch.size and table["first_batch"][0]:
        begins = np.append([0], begins)
    lengths = np.diff(steps[begins])
    if lengths.size:
        yield "first_batch", int(np.median(lengths))
    for tag in PERIODIC:
        period = _period(steps[table[tag].to_numpy()])
        if period is not None:
            yield tag, period


def _period(steps: NDArray[np.int64]) -> int | None:
    """The distance between consecutive ``steps``; None where it differs.

    The last interval may be shorter: training ends with an evaluation after any number of steps.
    """
    gaps = np.diff(steps)
    if gaps.size > 1 and gaps[-1] < gaps[0]:
        gaps = gaps[:-1]
    return int(gaps[0]) if gaps.size and (gaps == gaps[0]).all() else None
