"""Read step records as columns: fast where every line is sound, line by line where one is not.

The fast path lets polars parse a whole file and checks the columns; only when it meets anything odd does the slow
path look at each line, to name the line and the field. Both know the fields from ``schema.steps`` alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import annotated_types
import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic.fields import FieldInfo

from allpull.errors import RunDirError, threads_ran_out
from allpull.rundir import layout
from allpull.rundir.read import buckets, collectives, named_phases, reductions
from allpull.rundir.read.growing import GrowingFrame
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

SCHEMAS = {
    "steps": SCHEMA,
    "calls": collectives.SCHEMA,
    "ready": buckets.SCHEMA,
    "reduced": reductions.SCHEMA,
    "named": named_phases.SCHEMA,
}
"""Columns of ``StepTables``."""


_LISTS: dict[str, pl.DataType] = {
    "tags": pl.List(pl.String),
    "collectives": collectives.LISTED,
    "ready_ns": buckets.LISTED,
    "reductions": reductions.LISTED,
}
_PARSED = {**dict.fromkeys(NUMBERS, pl.Int64()), **_LISTS}
_BETWEEN = b"{}\n"  # a row of nulls before each file's: where it is not in its place, lines and rows do not match
_BATCH_BYTES = 16 << 20  # of files that are parsed together: enough for all threads, little beside the columns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsFile:
    """The file of one rank's step records; ``first`` and ``last`` are step numbers, None without records."""

    header: StepsHeader
    records: int
    first: int | None
    last: int | None
    cut_off: bool
    damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """Step records by rank, then step, with the columns of ``SCHEMA`` here and in the files of the other tables."""

    steps: pl.DataFrame
    calls: pl.DataFrame
    ready: pl.DataFrame
    reduced: pl.DataFrame
    named: pl.DataFrame


def read_steps(root: Path, ranks: Sequence[int], *, skip_damaged: bool) -> tuple[dict[int, StepsFile], StepTables]:
    """The step records of ``ranks``, ascending, in the resolved run directory ``root``.

    A rank whose file has not even a whole header is left out. Files are parsed together; where these are not all
    sound, one by one, and line by line the one that is not.

    Raises:
        RunDirError: a file or its header cannot be read, or a line is damaged and ``skip_damaged`` is off. Damaged
            is a line that is not JSON, lacks a required number, holds one of the wrong type or out of its range,
            ends before it begins, or does not follow the line before it.
    """
    files: dict[int, StepsFile] = {}
    tables = {name: GrowingFrame(schema) for name, schema in SCHEMAS.items()}
    batch: dict[int, Lines[StepsHeader]] = {}
    size = 0
    for rank in ranks:
        lines = _lines(root, rank)
        if lines is not None:
            batch[rank] = lines
            size += len(lines.body)
        if size >= _BATCH_BYTES:
            _read_batch(batch, files, tables, len(ranks), skip_damaged=skip_damaged)
            batch, size = {}, 0
    if batch:
        _read_batch(batch, files, tables, len(ranks), skip_damaged=skip_damaged)
    return files, StepTables(**{name: table.whole() for name, table in tables.items()})


def spans(steps: pl.DataFrame, inside: NDArray[np.bool_] | None = None) -> pl.DataFrame:
    """First begin and last end of each rank's records, in ns: columns rank, begin_ns, end_ns.

    ``steps`` go by rank; ``inside``: which of them count, None: all. A rank without one has no row.
    """
    rank = steps["rank"].to_numpy()
    begin_ns, end_ns = steps["begin_ns"].to_numpy(), steps["end_ns"].to_numpy()
    if inside is not None:
        rank, begin_ns, end_ns = rank[inside], begin_ns[inside], end_ns[inside]
    starts = np.flatnonzero(np.diff(rank, prepend=-1))
    ends = {"begin_ns": np.minimum.reduceat(begin_ns, starts), "end_ns": np.maximum.reduceat(end_ns, starts)}
    return pl.DataFrame({"rank": rank[starts], **ends})


def _lines(root: Path, rank: int) -> Lines[StepsHeader] | None:
    lines = read_lines(root, layout.steps_file(rank), StepsHeader, "steps")
    if lines is not None and lines.header.rank != rank:
        raise RunDirError(
            f"{lines.where}: its header says rank {lines.header.rank}",
            hint="the file was renamed: give it its own name",
        )
    return lines


def _read_batch(
    batch: dict[int, Lines[StepsHeader]],
    files: dict[int, StepsFile],
    tables: Mapping[str, GrowingFrame],
    ranks: int,
    *,
    skip_damaged: bool,
) -> None:
    """Add what ``batch`` holds to ``files`` and ``tables``, which are of ``ranks`` ranks in the end."""
    bodies = {rank: lines.body for rank, lines in batch.items()}
    read = _columns(bodies) if all(map(_is_shallow, bodies.values())) else None
    if read is None and len(batch) > 1:
        for rank, lines in batch.items():
            _read_batch({rank: lines}, files, tables, ranks, skip_damaged=skip_damaged)
        return
    damaged = 0
    if read is None:
        ((rank, lines),) = batch.items()
        good: list[bytes] = []
        damaged = _sift(lines, good, skip_damaged=skip_damaged)
        bodies = {rank: b"".join(good)}
        read = _columns(bodies)
        if read is None:
            raise RunDirError(f"{lines.where}: cannot be read as columns", hint="is a field written twice in one line?")
    for name, table in tables.items():
        table.append(getattr(read, name), share=(len(files) + len(batch)) / ranks)
    end = 0
    steps = read.steps["step"]
    ends = np.searchsorted(read.steps["rank"].to_numpy(), list(batch), side="right").tolist()
    for (rank, lines), until in zip(batch.items(), ends, strict=True):
        begin, end = end, until
        files[rank] = StepsFile(
            header=lines.header,
            records=end - begin,
            first=int(steps[begin]) if end > begin else None,
            last=int(steps[end - 1]) if end > begin else None,
            cut_off=lines.cut_off,
            damaged=damaged,
        )


def _columns(bodies: Mapping[int, bytes]) -> StepTables | None:
    """The records in the files' ``bodies``, by rank; None: one is malformed."""
    try:
        frame = pl.read_ndjson(io.BytesIO(_BETWEEN.join([b"", *bodies.values()])), schema=_PARSED)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        if threads_ran_out(error):
            raise
        return None
    lengths = np.array([1 + np.count_nonzero(_ends_line(body)) for body in bodies.values()])
    starts = np.cumsum(lengths) - lengths
    nulls = np.flatnonzero(frame["step"].is_null().to_numpy())
    if frame.height != lengths.sum() or not np.array_equal(nulls, starts):
        return None
    if not all(frame.select(_checks(starts.size)).row(0)):
        return None
    own = pl.Series("rank", np.repeat(np.array(list(bodies), dtype=np.int64), lengths))
    frame = frame.with_columns(own)
    named = [named_phases.rows(rank, body) for rank, body in bodies.items() if named_phases.FIELD in body]
    calls, ready, reduced = collectives.rows(frame), buckets.rows(frame), reductions.rows(frame)
    phases = [one for one in named if one is not None]
    if calls is None or ready is None or reduced is None or len(phases) < len(named):
        return None
    own_names = pl.concat([pl.DataFrame(schema=named_phases.SCHEMA), *phases])
    return StepTables(
        steps=named_phases.counted_as_forward(_finished(frame), own_names),
        calls=calls,
        ready=ready,
        reduced=named_phases.counted_as_forward(reduced, own_names),
        named=own_names,
    )


def _ends_line(body: bytes) -> NDArray[np.bool_]:
    """Which bytes of ``body`` end a line."""
    ends_line: NDArray[np.bool_] = np.frombuffer(body, dtype=np.uint8) == ord("\n")
    return ends_line


def _is_shallow(body: bytes) -> bool:
    """Whether no line can be nested more than a thousand levels deep: it is short, or opens few brackets.

    Lists without lists or words in them, as collectives are, add one level however many there are. Files that are
    mostly brackets or newlines are answered first, from counts: indices of them would fill memory.
    """
    ends_line = _ends_line(body)
    lines = np.count_nonzero(ends_line)
    if len(body) < SHORTEST_LINE * lines:
        return False
    line_ends = np.flatnonzero(ends_line)
    if np.diff(line_ends, prepend=-1).max(initial=0) <= SHALLOW_LINE:
        return True
    if body.count(b"[") + body.count(b"{") > MAX_OPENINGS * lines + len(body) // SHORTEST_CALL:
        return False
    codes = np.frombuffer(body, dtype=np.uint8)
    marks_at = np.flatnonzero(_MARKS[codes])
    marks = _MARKS[codes[marks_at]]
    is_flat = np.zeros(marks.size, dtype=np.bool_)
    is_flat[:-1] = marks[1:] == marks[:-1] + _CLOSES
    opened_at = marks_at[(marks <= _LAST_OPENING) & ~is_flat]
    opened = np.diff(np.searchsorted(opened_at, line_ends), prepend=0)
    return bool((opened <= MAX_OPENINGS).all())


def _checks(files: int) -> Iterator[pl.Expr]:
    """What must hold of the rows of ``files`` files, a row of nulls before each."""
    for name, number in NUMBERS.items():
        column = pl.col(name)
        yield column.is_between(number.least, MAX_VALUE).all().alias(f"{name} in range")
        if number.required:
            yield (column.null_count() == files).alias(f"{name} present")
    yield (pl.col("end_ns") >= pl.col("begin_ns")).all().alias("no negative step")
    yield (pl.col("step").diff() > 0).all().alias("steps in order")
    yield (pl.col("begin_ns").diff() >= 0).all().alias("time in order")


def _finished(frame: pl.DataFrame) -> pl.DataFrame:
    """The records in ``frame`` with the columns of ``SCHEMA``, without the rows between files."""
    tags = pl.col("tags")
    tagged = frame.lazy().with_row_index("row").select("row", "tags").filter(tags.list.len() > 0).collect()
    rows = tagged["row"].to_numpy()
    has = {tag: tags.list.contains(tag) for tag in TAGS}
    has[OTHER_TAG] = tags.list.eval(~pl.element().is_in(list(TAGS))).list.any()
    flags = tagged.select(expression.fill_null(value=False).alias(f"tag_{tag}") for tag, expression in has.items())
    columns = []
    for flag in flags.iter_columns():
        cells = np.zeros(frame.height, dtype=np.bool_)
        cells[rows] = flag.to_numpy()
        columns.append(pl.Series(flag.name, cells))
    return frame.lazy().select("rank", *NUMBERS).with_columns(columns).filter(pl.col("step").is_not_null()).collect()


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
