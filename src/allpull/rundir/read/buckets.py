"""Read when the gradients of each bucket were ready, from step records, as a table: one row per step and bucket.

Steps may differ in their number of buckets: until DDP has built its buckets, only the last moment of all is known.
"""

from __future__ import annotations

import polars as pl

SCHEMA: dict[str, pl.DataType] = dict.fromkeys(("rank", "step", "bucket", "ready_ns"), pl.Int64())
"""Columns of ``RunData.ready``: ``bucket`` counts from 0 in the order of reduction; times in ns, none before another
that its step has for an earlier bucket.
"""

LISTED = pl.List(pl.Int64)
"""The field in polars, which refuses anything but lists of integers."""

MAX_BUCKETS = 4096  # of one step: a network has no more parameters than that, or very nearly
MAX_VALUE = 2**62  # as of all moments: differences of two such still fit 64 bits


def rows(records: pl.DataFrame) -> pl.DataFrame | None:
    """The moments in order, with the columns of ``SCHEMA``; None where one is malformed.

    ``records`` have the columns rank, step and ``ready_ns``, each rank's in order.
    """
    lengths = pl.col("ready_ns").list.len()
    listed = records.lazy().select("rank", "step", "ready_ns").filter(lengths > 0).collect()
    if listed.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    if not listed.select((lengths <= MAX_BUCKETS).all()).item():
        return None
    bucket = pl.int_ranges(lengths.cast(pl.Int64), dtype=pl.Int64).alias("bucket")
    rows = listed.select("rank", "step", bucket, "ready_ns").explode("bucket", "ready_ns")
    moment = pl.col("ready_ns")
    in_order = ((moment >= moment.shift(1)) | (pl.col("bucket") == 0)).all()
    sound = (moment.null_count() == 0) & moment.is_between(-MAX_VALUE, MAX_VALUE).all() & in_order
    return rows if rows.select(sound).item() else None


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
