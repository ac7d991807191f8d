"""Tables as files, one per table: CSV, or Parquet. Written part by part, so that a long run does not fill memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

from allpull.export.tables import Table
from allpull.report.printable import printable
from allpull.schema.exported import ExportedTable

FORMULA_STARTS = ("=", "+", "-", "@")
"""Text that begins so is a formula to spreadsheets (OWASP, "CSV injection")."""


def write_csv(tables: Iterable[Table], folder: Path) -> list[ExportedTable]:
    """Write each of ``tables`` to a CSV file in ``folder``: UTF-8, a header line, empty where null.

    Names come from other people's programs: control characters are removed from text, and an apostrophe is put in
    front of text that a spreadsheet would compute.

    Raises:
        OSError: a file cannot be written.
    """
    return [_csv(table, folder / f"{table.name}.csv") for table in tables]


def write_parquet(tables: Iterable[Table], folder: Path) -> list[ExportedTable]:
    """Write each of ``tables`` to a Parquet file in ``folder``; text is stored as it was recorded.

    Raises:
        OSError: a file cannot be written.
    """
    try:
        return [_parquet(table, folder / f"{table.name}.parquet") for table in tables]
    except pl.exceptions.ComputeError as error:  # what polars makes of a full disk
        raise OSError(errno.EIO, str(error), str(folder)) from error


FILES: dict[str, Callable[[Iterable[Table], Path], list[ExportedTable]]] = {"csv": write_csv, "parquet": write_parquet}
"""Format → how its files are written."""


def safe_cell(text: str) -> str:
    """``text`` as a cell that no spreadsheet computes.

    >>> safe_cell("=HYPERLINK(A1)"), safe_cell("train_loss"), safe_cell("\\t=1+1")
    ("'=HYPERLINK(A1)", 'train_loss', "'=1+1")
    """
    bare = printable(text).strip()
    return f"'{bare}" if bare.startswith(FORMULA_STARTS) else bare


def _csv(table: Table, path: Path) -> ExportedTable:
    rows = 0
    with path.open("wb") as file:
        for number, part in enumerate(table.parts()):
            _inert(part).write_csv(file, include_header=number == 0)
            rows += part.height
    return ExportedTable(name=table.name, rows=rows, columns=dict(table.columns))


def _inert(part: pl.DataFrame) -> pl.DataFrame:
    """``part`` with safe text; each value that occurs is looked at once."""
    safe = []
    for name in part.select(pl.col(pl.String)).columns:
        values = part[name].unique().drop_nulls().to_list()
        changed = {value: cell for value in values if (cell := safe_cell(value)) != value}
        if changed:
            safe.append(pl.col(name).replace(changed))
    return part.with_columns(safe)


def _parquet(table: Table, path: Path) -> ExportedTable:
    """Write each part to a file, then all into one, which polars streams; a single part is the file."""
    parts, rows = [], 0
    for number, part in enumerate(table.parts()):
        place = path.with_name(f"{path.name}.{number}")
        part.write_parquet(place)
        parts.append(place)
        rows += part.height
    if len(parts) == 1:
        parts[0].rename(path)
    else:
        pl.scan_parquet(parts).sink_parquet(path)
        for place in parts:
            place.unlink()
    return ExportedTable(name=table.name, rows=rows, columns=dict(table.columns))
