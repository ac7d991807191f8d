"""The steps that a window is made of, and the time left out between them.

They are consecutive, but for windows of a profiler: these are joined, and what was not recorded between them is cut out
of all moments, as if each began when the one before ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.replay.window import Kinds
from allpull.schema.gap import Gap

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenSteps:
    """The steps of a window by their numbers, ascending; all arrays have shape (steps,).

    ``kinds``: which of the tags ``step_choice.ODD``, or a rollout, any rank has. ``cut_ns``: how much time was left out
    before each of them, in all.
    """

    numbers: Ints
    kinds: Kinds
    cut_ns: Ints
    gaps: tuple[Gap, ...]

    @property
    def size(self) -> int:
        """How many steps there are."""
        return self.numbers.size

    def hold(self, steps: pl.Series) -> pl.Series:
        """Which of ``steps`` are among them."""
        first, last = int(self.numbers[0]), int(self.numbers[-1])
        if last - first + 1 == self.size:
            return steps.is_between(first, last)
        return steps.is_in(pl.Series(self.numbers).implode())

    def rows(self, steps: pl.Series) -> NDArray[np.intp]:
        """The places of ``steps`` in ``numbers``, which holds them all."""
        return np.searchsorted(self.numbers, steps.to_numpy())

    def inside(self, records: pl.DataFrame) -> pl.DataFrame:
        """The rows of ``records`` that are of these steps, by their column ``step``.

        One column at a time, each in one piece: numpy then reads it in place, and none is in memory twice.
        """
        held = self.hold(records["step"])
        return pl.DataFrame([column.filter(held).rechunk() for column in records.iter_columns()])

    def joined(self, records: pl.DataFrame, *moments: str) -> pl.DataFrame:
        """``records`` of these steps with ``moments`` as if nothing was left out between steps."""
        if not self.cut_ns.any():
            return records
        cut = pl.Series(self.cut_ns[self.rows(records["step"])])
        return records.with_columns(pl.col(name) - cut for name in moments if name in records.columns)
