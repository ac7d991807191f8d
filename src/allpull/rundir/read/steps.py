"""Read step records as columns: fast where every line is sound, line by line where one is not.

The fast path lets polars parse a whole file and checks the columns; only when it meets anything odd does the slow
path look at each line, to name the line and the field. Both know the fields from ``schema.steps`` alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import annotated_types
import numpy as np
import polars as pl
from pydantic.fields import FieldInfo

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import buckets, collectives, named_phases, reductions
from allpull.rundir.read.lines import Lines, damage, read_lines, value_of
from allpull.schema.steps import StepRecord, StepsHeader, Tag

MAX_VALUE = 2**62  # of any number in a record: differences of two such times still fit 64 bits
SHALLOW_LINE = 1000  # bytes; polars before 2.1 overflows its stack, and ends the process, from some 3,000 levels on
MAX_OPENINGS = 64  # brackets that a longer line may open to be parsed by polars
SHORTEST_LINE = len('{"step":0,"epoch":0,"begin_ns":0,"end_ns":0}\n')
SHORTEST_CALL = len("[0,0,0,0,0],")
TAGS: tuple[str, ...] = get_args(Tag)
OTHER_TAG = "other"  # a tag that a newer minor version added: the step is left out, as its writer intended


_LAST_OPENING, _CLOSES = 2, 2  # of the marks below: opening ones come first, each closed by that of two more
_MARKS = np.zeros(256, dtype=np.uint8)
_MARKS[[ord(mark) for mark in '[{]}"']] = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    required: bool
    least: int


def _number(field: FieldInfo) -> _Number:
    bounds = [bound.ge for bound in field.metadata if isinstance(bound, annotated_types.Ge)]
    least = max((bound for bound in bounds if isinstance(bound, int)), default=-MAX_VALUE)
    return _Number(required=field.is_required(), least=least)


NO_NUMBERS = {"tags", "named", "collectives", "ready_ns", "reductions"}
NUMBERS = {name: _number(field) for name, field in StepRecord.model_fields.items() if name not in NO_NUMBERS}
SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int64(),
    **dict.fromkeys(NUMBERS, pl.Int64()),
    **{f"tag_{tag}": pl.Boolean() for tag in (*TAGS, OTHER_TAG)},
}
"""Columns of ``RunData.steps``: times in ns; a tag is a column of its own; phases that
the program named, collectives, reductions and the moments of buckets are in separate frames.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsFile:
    """The step records of one rank: a frame with the columns of ``SCHEMA``, one row per step, sorted by step number.

    ``calls``, ``ready``, ``reduced`` and ``named`` have the columns of ``SCHEMA`` in ``collectives``, ``buckets``,
    ``reductions`` and ``named_phases``.
    """

    header: StepsHeader
    frame: pl.DataFrame
    calls: pl.DataFrame
    ready: pl.DataFrame
    reduced: pl.DataFrame
    named: pl.DataFrame
    cut_off: bool
    damaged: int


def read_steps(root: Path, rank: int, *, skip_damaged: bool) -> StepsFile | None:
    """The step records of ``rank`` in the resolved run directory ``root``; None where not even a header is whole.

    Raises:
        RunDirError: the file or its header cannot be read, or a line is damaged and ``skip_damaged`` is off. Damaged
            is a line that is not JSON, lacks a required number, holds one of the wrong type or out of its range,
            ends before it begins, or does not follow the line before it.
    """
    lines = read_lines(root, layout.steps_file(rank), StepsHeader, "steps")
    if lines is None:
        return None
    if lines.header.rank != rank:
        raise RunDirError(
            f"{lines.where}: its header says rank {lines.header.rank}",
            hint="the file was renamed: give it its own name",
        )
    damaged = 0
    read = _columns(lines.body) if _is_shallow(lines.body) else None
    if read is None:
        good: list[bytes] = []
        damaged = _sift(lines, good, skip_damaged=skip_damaged)
        read = _columns(b"".join(good))
    if read is None:
        raise RunDirError(f"{lines.where}: cannot be read as columns", hint="is a field written twice in one line?")
    frame, calls, moments, reduced, phases = read
    frame, reduced = (named_phases.counted_as_forward(table, phases) for table in (frame, reduced))
    own = pl.lit(rank, dtype=pl.Int64).alias("rank")
    return StepsFile(
        header=lines.header,
        frame=_finished(frame, rank),
        calls=calls.select(own, pl.all()),
        ready=moments.select(own, pl.all()),
        reduced=reduced.select(own, pl.all()),
        named=phases.select(own, pl.all()),
        cut_off=lines.cut_off,
        damaged=damaged,
    )


def _columns(body: bytes) -> tuple[pl.DataFrame, ...] | None:
    """The records in ``body``, their collectives, moments of buckets, reductions and named phases; None: one is odd."""
    lists = {
        "tags": pl.List(pl.String),
        "collectives": collectives.LISTED,
        "ready_ns": buckets.LISTED,
        "reductions": reductions.LISTED,
    }
    schema = {**dict.fromkeys(NUMBERS, pl.Int64()), **lists}
    try:
        frame = pl.read_ndjson(io.BytesIO(body), schema=schema)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    sound = frame.height == body.count(b"\n") and all(frame.select(_checks()).row(0))
    if not sound:
        return None
    parts = (collectives.rows(frame), buckets.rows(frame), reductions.rows(frame), named_phases.rows(body))
    known = [part for part in parts if part is not None]
    return (frame, *known) if len(known) == len(parts) else None


def _is_shallow(body: bytes) -> bool:
    """Whether no line can be nested more than a thousand levels deep: it is short, or opens few brackets.

    Lists without lists or words in them, as collectives are, add one level however many there are. Files that are
    mostly brackets or newlines are answered first, from counts: indices of them would fill memory.
    """
    lines = body.count(b"\n")
    if len(body) < SHORTEST_LINE * lines:
        return False
    codes = np.frombuffer(body, dtype=np.uint8)
    line_ends = np.flatnonzero(codes == ord("\n"))
    if np.diff(line_ends, prepend=-1).max(initial=0) <= SHALLOW_LINE:
        return True
    if body.count(b"[") + body.count(b"{") > MAX_OPENINGS * lines + len(body) // SHORTEST_CALL:
        return False
    marks_at = np.flatnonzero(_MARKS[codes])
    marks = _MARKS[codes[marks_at]]
    is_flat = np.zeros(marks.size, dtype=np.bool_)
    is_flat[:-1] = marks[1:] == marks[:-1] + _CLOSES
    opened_at = marks_at[(marks <= _LAST_OPENING) & ~is_flat]
    opened = np.diff(np.searchsorted(opened_at, line_ends), prepend=0)
    return bool((opened <= MAX_OPENINGS).all())


def _checks() -> Iterator[pl.Expr]:
    for name, number in NUMBERS.items():
        column = pl.col(name)
        yield column.is_between(number.least, MAX_VALUE).all().alias(f"{name} in range")
        if number.required:
            yield (column.null_count() == 0).alias(f"{name} present")
    yield (pl.col("end_ns") >= pl.col("begin_ns")).all().alias("no negative step")
    yield (pl.col("step").diff() > 0).all().alias("steps in order")
    yield (pl.col("begin_ns").diff() >= 0).all().alias("time in order")


def _finished(frame: pl.DataFrame, rank: int) -> pl.DataFrame:
    tags = pl.col("tags")
    has = [tags.list.contains(tag).fill_null(value=False).alias(f"tag_{tag}") for tag in TAGS]
    other = (tags.list.set_difference(pl.lit(list(TAGS))).list.len() > 0).fill_null(value=False)
    return frame.select(pl.lit(rank, dtype=pl.Int64).alias("rank"), *NUMBERS, *has, other.alias(f"tag_{OTHER_TAG}"))


def _sift(lines: Lines[StepsHeader], good: list[bytes], *, skip_damaged: bool) -> int:
    """Put the sound lines into ``good`` and count the others, or raise at the first of them."""
    before: tuple[int, int] | None = None
    damaged = 0
    for number, line in lines.numbered():
        try:
            before = _checked(line, before)
        except ValueError as fault:
            if not skip_damaged:
                raise damage(lines.where, number, fault) from fault
            damaged += 1
        else:
            good.append(line)
    return damaged


def _checked(line: bytes, before: tuple[int, int] | None) -> tuple[int, int]:
    """Step number and begin of a sound line that may follow ``before``; ValueError says why it is not sound."""
    value = value_of(line)
    for name, number in NUMBERS.items():
        item = value.get(name)
        if item is None and number.required:
            raise ValueError(f"{name} is {'null' if name in value else 'missing'}, expected a whole number")
        if item is not None and type(item) is not int:  # True is an int to isinstance
            raise ValueError(f"{name} is {repr(item)[:40]}, expected a whole number")
        if item is not None and not number.least <= item <= MAX_VALUE:
            raise ValueError(f"{name} is {item}, expected {number.least} to {MAX_VALUE}")
    tags = value.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise ValueError(f"tags is {repr(tags)[:40]}, expected a list of words")
    collectives.check(value.get("collectives"))
    buckets.check(value.get("ready_ns"))
    reductions.check(value.get("reductions"))
    named_phases.check(value.get("named"))
    step, begin_ns, end_ns = value["step"], value["begin_ns"], value["end_ns"]
    if end_ns < begin_ns:
        raise ValueError(f"end_ns is {end_ns}, before begin_ns {begin_ns}: a step of negative duration")
    if before is not None and step <= before[0]:
        fault = "written twice" if step == before[0] else f"out of order, after step {before[0]}"
        raise ValueError(f"step is {step}: {fault}")
    if before is not None and begin_ns < before[1]:
        raise ValueError(f"begin_ns is {begin_ns}, before that of the step before, {before[1]}")
    return step, begin_ns
