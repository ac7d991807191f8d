"""Join the windows that a profiler recorded, of a few steps each, into one series of steps.

What was not recorded between two windows is cut out of the moments of all ranks alike, so that who waited for whom
within a window stays as it was. That fits only where the ranks begin a window as they ended the one before: a rank that
was late in between, or began to record later, would appear to idle. Steps that do not follow so are left out, or a
whole window where that leaves out fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.replay.window import Bools

Ints = NDArray[np.int64]
NEAR = 16  # steps of a window's end, and of the next one's begin, between which two are joined
CHAINS = 8  # windows before one to which it may be joined


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """Windows joined so far: ``rows`` of the last one, ``steps`` of all, and what is cut out before it, in ns."""

    rows: slice
    steps: int
    cut_ns: int
    before: _Chain | None

    def windows(self) -> Iterator[_Chain]:
        """Its windows, the last one first."""
        one: _Chain | None = self
        while one is not None:
            yield one
            one = one.before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """When steps begin and end: ``begin_ns`` and ``end_ns`` (steps, ranks); ``limit_ns``: how far ranks may differ."""

    begin_ns: Ints
    end_ns: Ints
    limit_ns: int

    def met(self, before: slice, after: slice) -> tuple[int, int, int] | None:
        """The last row of ``before`` and the first of ``after`` between which all ranks pause alike, and how long.

        Of several, those that leave out the fewest steps; None: there are none.
        """
        ends = slice(max(before.start, before.stop - NEAR), before.stop)
        begins = slice(after.start, min(after.stop, after.start + NEAR))
        apart_ns = self.begin_ns[None, begins] - self.end_ns[ends, None]
        last, first = np.nonzero(np.ptp(apart_ns, axis=-1) <= self.limit_ns)
        if not last.size:
            return None
        nearest = int(np.argmin(first - last))
        pause_ns = int(apart_ns[last[nearest], first[nearest]].min())
        return ends.start + int(last[nearest]), begins.start + int(first[nearest]), pause_ns


def edges(records: pl.DataFrame, numbers: Ints, whole: Bools, limit_ns: int) -> Edges:
    """The edges of the steps ``numbers`` (steps,); of those that are not ``whole``, which all ranks recorded, zeros.

    ``records``: columns rank, step, begin_ns and end_ns on one clock.
    """
    of_whole = records.filter(pl.col("step").is_in(pl.Series(numbers[whole]).implode())).sort("step", "rank")
    ranks = of_whole.height // max(1, int(whole.sum()))
    begin_ns, end_ns = (np.zeros((numbers.size, ranks), dtype=np.int64) for _ in range(2))
    for moments_ns, name in ((begin_ns, "begin_ns"), (end_ns, "end_ns")):
        moments_ns[whole] = of_whole[name].to_numpy().reshape(-1, ranks)
    return Edges(begin_ns=begin_ns, end_ns=end_ns, limit_ns=limit_ns)


def joined_windows(series: Sequence[slice], edge: Edges, begins: Bools, parted: Bools) -> tuple[NDArray[np.intp], Ints]:
    """The longest series that ``series``, rows of consecutive steps, can be joined to; the last of several.

    Args:
        series: ascending.
        edge: of all steps.
        begins: shape (steps,); at which a window begins: another series is joined to none before it.
        parted: shape (steps,); before which nothing is joined to what was before.

    Returns:
        The rows, and how much time is cut out before each in ns, both of shape (joined steps,).
    """
    part = np.cumsum(parted)
    chains: list[_Chain] = []
    for one in series:
        alone = _Chain(rows=one, steps=one.stop - one.start, cut_ns=0, before=None)
        near = (chain for chain in chains[-CHAINS:] if begins[one.start] and part[one.start] == part[chain.rows.start])
        longer = (joined for chain in near if (joined := _joined(chain, one, edge)) is not None)
        chains.append(max((*longer, alone), key=lambda chain: chain.steps))
    best = max(reversed(chains), key=lambda chain: chain.steps)
    windows = list(best.windows())[::-1]
    rows = np.concatenate([np.arange(one.rows.start, one.rows.stop) for one in windows])
    return rows, np.repeat([one.cut_ns for one in windows], [one.rows.stop - one.rows.start for one in windows])


def _joined(chain: _Chain, after: slice, edge: Edges) -> _Chain | None:
    """``chain`` with the window ``after``; None: they do not fit, or that would leave out more than it adds."""
    met = edge.met(chain.rows, after)
    if met is None:
        return None
    last, first, pause_ns = met
    steps = chain.steps - (chain.rows.stop - last - 1) + after.stop - first
    if steps <= chain.steps:
        return None
    before = replace(chain, rows=slice(chain.rows.start, last + 1))
    return _Chain(rows=slice(first, after.stop), steps=steps, cut_ns=chain.cut_ns + pause_ns, before=before)
