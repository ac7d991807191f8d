"""Read the phases that a program named itself from step records, as a table: one row per step and name."""

from __future__ import annotations

import json

import polars as pl

from allpull.schema.steps import ROLLOUTS

SCHEMA: dict[str, pl.DataType] = {"rank": pl.Int64(), "step": pl.Int64(), "name": pl.String(), "ns": pl.Int64()}
"""Columns of ``RunData.named``: how long a rank was in the phase ``name`` in a step."""

MAX_NAMES = 1024  # of one step; the recorder puts those beyond 64 under one name
MAX_VALUE = 2**62  # as of all times
FIELD = b'"named":'


def rows(rank: int, body: bytes) -> pl.DataFrame | None:
    """The named phases in the records of ``rank``, with the columns of ``SCHEMA``; None where one is malformed.

    Only lines that have the field are parsed.
    """
    rows: list[tuple[int, int, str, int]] = []
    for line in body.splitlines() if FIELD in body else ():
        if FIELD in line:
            try:
                value = json.loads(line)
                check(value.get("named"))
            except (ValueError, AttributeError, RecursionError):
                return None
            rows += [(rank, value["step"], name, ns) for name, ns in (value.get("named") or {}).items()]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def counted_as_forward(frame: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """``frame``, with the columns ``rank``, ``step`` and ``forward_ns``; time of ``ROLLOUTS`` is part of the latter."""
    spent = named.filter(pl.col("name").is_in(ROLLOUTS) & (pl.col("ns") > 0))
    if spent.is_empty():
        return frame
    of_steps = spent.group_by("rank", "step").agg(pl.col("ns").clip(upper_bound=MAX_VALUE // 4).sum())
    joined = frame.join(of_steps, on=["rank", "step"], how="left", maintain_order="left")
    both = pl.when(pl.col("ns").is_null()).then("forward_ns").otherwise(pl.sum_horizontal("forward_ns", "ns"))
    return joined.with_columns(both.alias("forward_ns")).drop("ns")


def check(value: object) -> None:
    """Check the field of one record, parsed from JSON.

    Raises:
        ValueError: it is not a mapping of names to times; the message describes the fault.
    """
    if value is None:
        return
    if not isinstance(value, dict) or len(value) > MAX_NAMES:
        raise ValueError(f"named is {repr(value)[:40]}, expected at most {MAX_NAMES:,} names with their ns")
    for name, ns in value.items():
        if not isinstance(ns, int) or isinstance(ns, bool) or not 0 <= ns <= MAX_VALUE:
            raise ValueError(f"named[{repr(name)[:40]}] is {repr(ns)[:40]}, expected 0 to {MAX_VALUE}")
