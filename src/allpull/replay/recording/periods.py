"""Cut a window to whole periods: of epochs, and of evaluations and checkpoints that come every so many steps.

What occurs every p steps occurs ⌊n/p⌋ or ⌈n/p⌉ times in n steps, depending on where the window begins. Where n is a
multiple of p it occurs as often as in the long run, so its cost is right and not random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

ROLLOUT = "rollout"
PERIODIC = ("evaluation", "checkpoint", ROLLOUT)
"""What may recur periodically, by the name of its column."""


def whole_periods(rows: slice, table: pl.DataFrame) -> slice:
    """The last rows of ``rows`` that make up whole periods; all rows where no period fits.

    ``table`` has the columns step, epoch, first_batch and those of ``PERIODIC``, one row per step. Periods that do
    not all fit into ``rows`` are tried in turn: epochs first, then evaluations, then checkpoints.
    """
    count, length = rows.stop - rows.start, 1
    for period in _periods(table):
        common = math.lcm(length, period)
        if common <= count:
            length = common
    return slice(rows.stop - count // length * length, rows.stop)


def _periods(table: pl.DataFrame) -> Iterator[int]:
    """The periods of a run, in steps."""
    steps = table["step"].to_numpy()
    epoch = table["epoch"].to_numpy()
    begins = np.flatnonzero(np.diff(epoch)) + 1
    if epoch.size and table["first_batch"][0]:
        begins = np.append([0], begins)
    lengths = np.diff(steps[begins])
    if lengths.size:
        yield int(np.median(lengths))
    for tag in PERIODIC:
        period = _period(steps[table[tag].to_numpy()])
        if period is not None:
            yield period


def _period(steps: NDArray[np.int64]) -> int | None:
    """The distance between consecutive ``steps``; None where it differs.

    The last interval may be shorter: training ends with an evaluation after any number of steps.
    """
    gaps = np.diff(steps)
    if gaps.size > 1 and gaps[-1] < gaps[0]:
        gaps = gaps[:-1]
    return int(gaps[0]) if gaps.size and (gaps == gaps[0]).all() else None
