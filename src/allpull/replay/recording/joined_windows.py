"""Join the windows that a profiler recorded, of a few steps each, into one series of steps.

What was not recorded between two windows is cut out of the moments of all ranks alike, so that who waited for whom
within a window stays as it was. That fits only where the ranks begin a window as they ended the one before: a rank that
was late in between, or began to record later, would appear to idle. Steps that do not follow so are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.replay.window import Bools

Ints = NDArray[np.int64]


def joined_windows(
    records: pl.DataFrame, numbers: Ints, series: Sequence[slice], parted: Bools, limit_ns: int
) -> tuple[NDArray[np.intp], Ints]:
    """The most of ``series`` that can be joined: its rows of ``numbers``, and how much time is cut out before each.

    Args:
        records: of steps; columns rank, step, begin_ns and end_ns on one clock.
        numbers: of steps, shape (steps,), ascending.
        series: rows of consecutive steps that all ranks recorded, ascending.
        parted: shape (steps,); before which steps nothing is joined to what was before.
        limit_ns: by how much ranks may begin a series otherwise than they ended the one before.
    """
    every = np.concatenate([np.arange(one.start, one.stop) for one in series])
    of_series = records.filter(pl.col("step").is_in(pl.Series(numbers[every]).implode())).sort("step", "rank")
    begin_ns, end_ns = (of_series[name].to_numpy().reshape(every.size, -1) for name in ("begin_ns", "end_ns"))
    place = np.cumsum(np.isin(np.arange(numbers.size), every)) - 1
    best: list[tuple[slice, int]] = []
    kept: list[tuple[slice, int]] = []
    for one in series:
        if not kept or parted[kept[-1][0].start + 1 : one.start + 1].any():
            kept = [(one, 0)]
        else:
            before, cut_ns = kept[-1]
            ends_ns, begins_ns = (ns[place[rows]] for ns, rows in ((end_ns, before), (begin_ns, one)))
            met = _met(ends_ns, begins_ns, limit_ns)
            if met is None:
                continue
            apart_ns = int((begins_ns[met[1]] - ends_ns[met[0]]).min())
            kept[-1] = (slice(before.start, before.start + met[0] + 1), cut_ns)
            kept.append((slice(one.start + met[1], one.stop), cut_ns + apart_ns))
        best = kept if _count(kept) >= _count(best) else best
    rows = np.concatenate([np.arange(one.start, one.stop) for one, _ in best])
    return rows, np.repeat([cut_ns for _, cut_ns in best], [one.stop - one.start for one, _ in best])


def _met(ends_ns: Ints, begins_ns: Ints, limit_ns: int) -> tuple[int, int] | None:
    """The last step of one series, and the first of the next, between which all ranks pause alike.

    None: there are none. ``ends_ns`` and ``begins_ns`` (steps, ranks). Of several, those that leave out the fewest.
    """
    apart_ns = begins_ns[None, :] - ends_ns[:, None]
    last, first = np.nonzero(np.ptp(apart_ns, axis=-1) <= limit_ns)
    if not last.size:
        return None
    nearest = int(np.argmin(first - last))
    return int(last[nearest]), int(first[nearest])


def _count(kept: Sequence[tuple[slice, int]]) -> int:
    return sum(rows.stop - rows.start for rows, _ in kept)
