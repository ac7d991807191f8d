"""Join frames that are read one after the other, so that no row is in memory twice.

To concatenate them in the end would need twice the memory of all of them: an allocator keeps for a while what it was
given back in small pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

MORE_ROOM = 1.05  # than the rows so far suggest; what is not written takes no memory
MOST_ROOM = 8  # times the rows so far: the other files may be short


class GrowingFrame:
    """Rows with the columns ``schema``; integers are copied into arrays with room for more rows, where they come in."""

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        self._rows = 0
        self._names = list(schema)
        self._numbers = {name: np.empty(0, dtype=np.int64) for name, kind in schema.items() if kind == pl.Int64}
        self._nulls: dict[str, list[tuple[int, NDArray[np.bool_]]]] = {name: [] for name in self._numbers}
        self._others = {
            name: [pl.Series(name, dtype=kind)] for name, kind in schema.items() if name not in self._numbers
        }

    def append(self, frame: pl.DataFrame, *, share: float) -> None:
        """Add the rows of ``frame``; ``share``: about how much of all rows is then here.

        A column without any number takes no memory until one comes.
        """
        end = self._rows + frame.height
        for name, values in self._numbers.items():
            column = frame[name]
            nulls = column.null_count()
            if nulls:
                self._nulls[name].append((self._rows, column.is_null().to_numpy()))
            is_known = nulls < frame.height
            if end > values.size and (is_known or values.size):
                before = values[: self._rows]
                self._numbers[name] = np.zeros(int(end * min(MORE_ROOM / share, MOST_ROOM)), dtype=np.int64)
                self._numbers[name][: before.size] = before
            if is_known:
                self._numbers[name][self._rows : end] = column.fill_null(0).to_numpy()
        for name, pieces in self._others.items():
            pieces.append(frame[name])
        self._rows = end

    def whole(self) -> pl.DataFrame:
        """All rows, each column in one piece; nothing is left here."""
        return pl.DataFrame([self._column(name) for name in self._names])

    def _column(self, name: str) -> pl.Series:
        if name in self._others:
            return pl.concat(self._others.pop(name), rechunk=True)
        numbers, nulls = self._numbers.pop(name)[: self._rows], self._nulls.pop(name)
        if numbers.size < self._rows:
            return pl.repeat(None, self._rows, dtype=pl.Int64(), eager=True).alias(name)
        values = pl.Series(name, numbers)
        if not nulls:
            return values
        is_null = np.zeros(self._rows, dtype=np.bool_)
        for begin, where in nulls:
            is_null[begin : begin + where.size] = where
        return pl.select(pl.when(pl.Series(is_null)).then(None).otherwise(values).alias(name)).to_series()
