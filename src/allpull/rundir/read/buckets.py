"""Read when the gradients of each bucket were ready, from step records, as a table: one row per step.

Steps may differ in their number of buckets: until DDP has built its buckets, only the last moment of all is known.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

LISTED = pl.List(pl.Int64())
"""The field in polars, which refuses anything but lists of integers."""

SCHEMA: dict[str, pl.DataType] = {"rank": pl.Int64(), "step": pl.Int64(), "ready_ns": LISTED}
"""Columns of ``RunData.ready``: a moment of each bucket in the order of reduction, in ns, none before an earlier one;
steps without any have no row. A row for each bucket would take three times the memory.
"""

MAX_BUCKETS = 4096  # of one step: a network has no more parameters than that, or very nearly
MAX_VALUE = 2**62  # as of all moments: differences of two such still fit 64 bits


def rows(records: pl.DataFrame) -> pl.DataFrame | None:
    """The steps that have moments, with the columns of ``SCHEMA``; None where one is malformed.

    ``records`` have the columns rank, step and ``ready_ns``, each rank's in order.
    """
    lengths = pl.col("ready_ns").list.len()
    listed = records.lazy().select("rank", "step", "ready_ns").filter(lengths > 0).collect()
    if listed.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    if not listed.select((lengths <= MAX_BUCKETS).all()).item():
        return None
    moments = listed["ready_ns"].explode()
    if moments.null_count() or not moments.is_between(-MAX_VALUE, MAX_VALUE).all():
        return None
    falls = np.flatnonzero(np.diff(moments.to_numpy()) < 0) + 1  # from a step to the next one they may
    return listed if np.isin(falls, np.cumsum(counts(listed))).all() else None


def counts(ready: pl.DataFrame) -> NDArray[np.int64]:
    """How many moments each row of ``ready`` has."""
    return ready["ready_ns"].list.len().cast(pl.Int64).to_numpy()


def check(value: object) -> None:
    """Check the field of one record, parsed from JSON.

    Raises:
        ValueError: it is not a list of moments in order; the message describes the first fault.
    """
    if value is None:
        return
    if isinstance(value, list):
        fault = _fault(value)
    else:
        fault = f"ready_ns is {repr(value)[:40]}, expected a list of whole numbers"
    if fault:
        raise ValueError(fault)


def _fault(moments: list[object]) -> str | None:
    if len(moments) > MAX_BUCKETS:
        return f"ready_ns has {len(moments):,} moments, expected {MAX_BUCKETS:,} at most"
    before = -MAX_VALUE
    for place, moment in enumerate(moments):
        where = f"ready_ns[{place}] is {repr(moment)[:40]}"
        if not isinstance(moment, int) or isinstance(moment, bool):
            return f"{where}, expected a whole number"
        if abs(moment) > MAX_VALUE:
            return f"{where}, expected -{MAX_VALUE} to {MAX_VALUE}"
        if moment < before:
            return f"{where}, before that of the bucket before, {before}"
        before = moment
    return None
