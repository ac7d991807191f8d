"""Read the collectives in step records as a table, one row per call.

A call for which the rank never waited has neither ``blocked_ns`` nor ``end_ns``; one whose place in its group is not
known has no ``seq``.
"""

from __future__ import annotations

import polars as pl

FIELDS = ("kind", "seq", "begin_ns", "blocked_ns", "end_ns")
SCHEMA: dict[str, pl.DataType] = {"rank": pl.Int64(), "step": pl.Int64(), **dict.fromkeys(FIELDS, pl.Int64())}
"""Columns of ``RunData.collectives``: times in ns; ``kind`` is the id of an event of the same rank."""

LISTED = pl.List(pl.List(pl.Int64))
"""The field in polars, which refuses anything but lists of lists of integers."""

_MAX_VALUE = 2**62  # as of all numbers in a record: differences of two such times still fit 64 bits


def rows(records: pl.DataFrame) -> pl.DataFrame | None:
    """The calls in order, with the columns of ``SCHEMA``; None where one is malformed.

    ``records`` have the columns rank, step and ``collectives``, each rank's in order.
    """
    columns = records.lazy().select("rank", "step", "collectives")
    listed = columns.filter(pl.col("collectives").list.len() > 0).collect()
    if listed.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    calls = listed.explode("collectives")
    if not (calls["collectives"].list.len() == len(FIELDS)).fill_null(value=False).all():
        return None
    fields = (pl.col("collectives").list.get(place).alias(name) for place, name in enumerate(FIELDS))
    rows = calls.select("rank", "step", *fields)
    return rows if all(rows.select(*_checks()).row(0)) else None


def _checks() -> list[pl.Expr]:
    kind, seq, begin, blocked, end = (pl.col(name) for name in FIELDS)
    return [
        (kind.null_count() + begin.null_count() == 0).alias("kind and begin present"),
        kind.is_between(0, _MAX_VALUE).all().alias("kind in range"),
        seq.is_between(0, _MAX_VALUE).all().alias("seq in range"),
        begin.is_between(-_MAX_VALUE, _MAX_VALUE).all().alias("begin in range"),
        blocked.is_between(0, _MAX_VALUE).all().alias("blocked in range"),
        (end.is_between(-_MAX_VALUE, _MAX_VALUE) & (end >= begin)).all().alias("end in range"),
        (blocked.is_null() == end.is_null()).all().alias("blocked until its end"),
    ]


def check(value: object) -> None:
    """Check the field of one record, parsed from JSON.

    Raises:
        ValueError: it is not a list of calls; the message describes the first fault.
    """
    if value is None:
        return
    calls = value if isinstance(value, list) else [value]
    for place, call in enumerate(calls):
        fault = _fault(call) if calls is value else "expected a list of calls"
        if fault:
            raise ValueError(f"collectives[{place}] is {repr(call)[:80]}, {fault}")


def _fault(call: object) -> str | None:
    if not isinstance(call, list) or len(call) != len(FIELDS):
        return f"expected a list of {', '.join(FIELDS)}"
    if any(number is not None and type(number) is not int for number in call):  # True is an int to isinstance
        return "expected whole numbers"
    kind, seq, begin, blocked, end = call
    faults = {
        "its kind or begin is missing": kind is None or begin is None,
        "it was blocked without an end, or ended without being blocked": (blocked is None) != (end is None),
        "its kind, number or time is below 0": any(
            number is not None and number < 0 for number in (kind, seq, blocked)
        ),
        f"a number is beyond {_MAX_VALUE}": any(number is not None and abs(number) > _MAX_VALUE for number in call),
        "it ends before it begins": None not in (begin, end) and end < begin,
    }
    return next((fault for fault, occurs in faults.items() if occurs), None)
