"""Read the reductions of gradients in step records as a table, one row per reduction.

Only steps that list them have rows: another step has at most the one of its ``arrival_ns`` and ``done_ns``.
"""

from __future__ import annotations

import polars as pl

from allpull.rundir.read.buckets import MAX_BUCKETS, MAX_VALUE

SPENT = ("input_ns", "copy_ns", "forward_ns", "backward_ns", "optimizer_ns")
FIELDS = ("network", "begin_ns", "done_ns", *SPENT)
SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("rank", "step", "reduction", *FIELDS, "arrival_ns"), pl.Int64()),
    "ready_ns": pl.List(pl.Int64()),
}
"""Columns of ``RunData.reductions``: ``reduction`` counts from 0 in each step; times in ns. ``SPENT`` is what the step
had spent in a phase when the reduction was done. ``ready_ns`` has one moment per bucket, ascending; the last is
``arrival_ns``.
"""

LISTED = pl.List(pl.List(pl.Int64))
"""The field in polars, which refuses anything but lists of lists of integers."""

MAX_REDUCTIONS = 4096  # of one step


def rows(records: pl.DataFrame) -> pl.DataFrame | None:
    """The reductions in order, with the columns of ``SCHEMA``; None where one is malformed.

    ``records`` have the columns rank, step and ``reductions``, each rank's in order.
    """
    lengths = pl.col("reductions").list.len()
    listed = records.lazy().select("rank", "step", "reductions").filter(lengths > 0).collect()
    if listed.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    if not listed.select((lengths <= MAX_REDUCTIONS).all()).item():
        return None
    place = pl.int_ranges(lengths.cast(pl.Int64), dtype=pl.Int64).alias("reduction")
    each = listed.select("rank", "step", place, "reductions").explode("reduction", "reductions")
    size = each["reductions"].list.len()
    if not (size.is_between(len(FIELDS) + 1, len(FIELDS) + MAX_BUCKETS)).fill_null(value=False).all():
        return None
    values = pl.col("reductions")
    table = each.select(
        "rank",
        "step",
        "reduction",
        *(values.list.get(place).alias(name) for place, name in enumerate(FIELDS)),
        values.list.last().alias("arrival_ns"),
        values.list.slice(len(FIELDS)).alias("ready_ns"),
    )
    numbers = pl.col(*FIELDS)
    sound = [
        pl.all_horizontal(numbers.is_not_null().all()),
        pl.all_horizontal(numbers.is_between(-MAX_VALUE, MAX_VALUE).all()),
        pl.all_horizontal(pl.col("network", *SPENT).ge(0).all()),
        pl.col("ready_ns")
        .list.eval(pl.element().is_not_null() & pl.element().is_between(-MAX_VALUE, MAX_VALUE))
        .list.all()
        .all(),
        (pl.col("ready_ns").list.diff().list.min().fill_null(0) >= 0).all(),
    ]
    return table if all(table.select(one).item() for one in sound) else None


def check(value: object) -> None:
    """Check the field of one record, parsed from JSON.

    Raises:
        ValueError: it is not a list of reductions; the message describes the first fault.
    """
    if value is None:
        return
    if not isinstance(value, list) or len(value) > MAX_REDUCTIONS:
        raise ValueError(f"reductions is {repr(value)[:40]}, expected a list of at most {MAX_REDUCTIONS:,} reductions")
    for place, one in enumerate(value):
        fault = _fault(one)
        if fault:
            raise ValueError(f"reductions[{place}] {fault}")


def _fault(one: object) -> str | None:
    if not isinstance(one, list) or not len(FIELDS) < len(one) <= len(FIELDS) + MAX_BUCKETS:
        return f"is {repr(one)[:40]}, expected {', '.join(FIELDS)}, and up to {MAX_BUCKETS:,} moments of buckets"
    for name, value in zip((*FIELDS, *["ready_ns"] * (len(one) - len(FIELDS))), one, strict=True):
        if not isinstance(value, int) or isinstance(value, bool):
            return f"has {name} {repr(value)[:40]}, expected a whole number"
        least = 0 if name == "network" or name in SPENT else -MAX_VALUE
        if not least <= value <= MAX_VALUE:
            return f"has {name} {repr(value)[:40]}, expected {least} to {MAX_VALUE}"
    ready = one[len(FIELDS) :]
    return None if ready == sorted(ready) else "has a bucket that was ready before an earlier one"
