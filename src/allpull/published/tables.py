"""Read published measurements: points (one row is one configuration) and epochs (one row is one epoch of one run).

A table of points has a column ``gpus`` (or ``ranks``) and at least one of ``MEASURED``, as a column or a note.
``notes`` holds ``key=value`` pairs, divided by semicolons; any column that is not one of ``COLUMNS`` is such a pair
too. A table of epochs has ``EPOCH_COLUMNS`` and, where accuracy was measured, ``top1_val`` and ``top5_val``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from allpull.errors import BadInput
from allpull.published.figures import Figure
from allpull.units import counted

MEASURED = ("images_per_sec", "speedup", "efficiency", "train_time_s", "epoch_time_s", "POP_parallel_efficiency")
EPOCH_COLUMNS = ("run", "epoch", "wall_time", "throughput_img_s")
SETUP = ("source", "model", "framework", "gpu", "batch_per_gpu", "precision")
COLUMNS = ("series", "gpus", "nodes", "images_per_sec", "speedup", "efficiency", "train_time_s", "notes", *SETUP)
SYNONYMS = {"ranks": "gpus", "hosts": "nodes", "images_per_s": "images_per_sec", "samples_per_s": "images_per_sec"}
NUMBERS = (
    *("epochs", "samples", "epoch_time_s", "epoch_training_s", "claim_top1", "claim_top5", "top5"),
    *("POP_parallel_efficiency", "POP_load_balance", "POP_comm_efficiency"),
)
"""Notes that hold a number, or a range of numbers."""
MAX_BYTES, MAX_ROWS = 64 * 2**20, 200_000
MAX_COLUMNS, MAX_CELLS = 1_000, 5_000_000  # a row of few columns has an entry for every column, too
IMAGENET_TRAINING_IMAGES = 1_281_167  # ILSVRC 2012 (Russakovsky et al. 2015, table 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One configuration as published; ``line`` is its line in the file. Numbers that are not stated are None.

    ``setup`` are its ``SETUP`` columns: only configurations with the same setup have speed-ups over each other.
    """

    line: int
    series: str
    setup: tuple[str, ...]
    gpus: int
    nodes: int | None
    rate: Figure | None
    speedup: Figure | None
    efficiency: Figure | None
    seconds: Figure | None
    notes: Mapping[str, str]
    unit: str = "GPU"

    @property
    def size(self) -> str:
        """On how many GPUs, or ranks, in words."""
        return counted(self.gpus, self.unit)

    def note(self, key: str) -> Figure | None:
        """The number of a note; None where there is no such note, or words (``unread_notes``)."""
        try:
            return Figure.printed(self.notes.get(key, ""))
        except ValueError:
            return None

    @property
    def unread_notes(self) -> list[str]:
        """Notes that ought to be numbers and are none."""
        return [key for key in NUMBERS if key in self.notes and self.note(key) is None]

    @property
    def epochs(self) -> float | None:
        """For how many epochs it trained."""
        stated = self.note("epochs")
        return None if stated is None else stated.middle

    @property
    def samples(self) -> int | None:
        """Samples of one epoch: as noted, or those of ImageNet; None for synthetic or unknown data."""
        stated = self.note("samples")
        if stated is not None:
            return round(stated.middle)
        data = self.notes.get("data", "")
        return IMAGENET_TRAINING_IMAGES if "real ImageNet" in data or "ILSVRC2012" in data else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The end of one epoch: wall-clock seconds, images/s in it, accuracies in percent."""

    line: int
    number: int
    end_s: float
    rate: float
    top1: float | None
    top5: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The epochs of one run, in order."""

    run: str
    epochs: list[Epoch] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All that was read; ``unsized`` rows have no number of GPUs."""

    points: list[Point]
    curves: Mapping[str, Curve]
    unsized: int = 0

    def series(self) -> dict[str, list[Point]]:
        """Points by series, each by its number of GPUs."""
        grouped: dict[str, list[Point]] = {}
        for point in self.points:
            grouped.setdefault(point.series, []).append(point)
        return {name: sorted(points, key=lambda one: one.gpus) for name, points in grouped.items()}

    def curve(self, point: Point) -> Curve | None:
        """The epochs of the run that the note ``curve`` of a point names."""
        return self.curves.get(point.notes.get("curve", ""))


def read_tables(paths: Iterable[Path]) -> Published:
    """Read tables of points and of epochs; their header tells which.

    Raises:
        BadInput: a file is no such table, is too large, or a number in it is none; names file and line.
    """
    points: list[Point] = []
    unsized = 0
    curves: dict[str, Curve] = {}
    for path in paths:
        header, rows = _rows(path)
        try:
            if set(EPOCH_COLUMNS) <= set(header):
                for line, row in rows:
                    _add_epoch(curves, line, row)
            elif "gpus" in header and _measures(header, rows):
                read = [_point(line, row, path.stem) for line, row in rows]
                points += [point for point in read if point is not None]
                unsized += read.count(None)
            else:
                lacking = f"none of {', '.join(MEASURED)}" if "gpus" in header else "no column gpus or ranks"
                raise BadInput(
                    f"a table of points, with {lacking}", hint=f"a table of epochs has {', '.join(EPOCH_COLUMNS)}"
                )
        except BadInput as error:
            raise BadInput(f"{path}: {error.message}", hint=error.hint) from None
    for curve in curves.values():
        curve.epochs.sort(key=lambda one: one.number)
    return Published(points=points, curves=curves, unsized=unsized)


def _measures(header: Iterable[str], rows: Iterable[tuple[int, Mapping[str, str]]]) -> bool:
    """Whether a table holds something that was measured."""
    stated = {*header, *(name for _, row in rows for name in _notes(row.get("notes", "")))}
    return not stated.isdisjoint(MEASURED)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    try:
        if not path.is_file():
            raise BadInput(f"there is no file {path}", hint="give a CSV file")
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} is larger than {MAX_BYTES // 2**20} MiB", hint="audit a part of it")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="", strict=True)
            stated = [name.strip() for name in reader.fieldnames or ()]
            if len(stated) > MAX_COLUMNS:
                raise BadInput(f"{path} has {len(stated):,} columns", hint=f"a table has at most {MAX_COLUMNS:,}")
            header = [one if SYNONYMS.get(one) in stated else SYNONYMS.get(one, one) for one in stated]
            reader.fieldnames = header
            most_rows = min(MAX_ROWS, MAX_CELLS // max(1, len(header)))
            rows: list[tuple[int, dict[str, str]]] = []
            for row in reader:
                if None in row or len(rows) == most_rows:
                    raise BadInput(f"{path}: line {reader.line_num} has more columns, or rows, than there may be")
                rows.append((reader.line_num, {key: value.strip() for key, value in row.items()}))
            return header, rows
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no CSV file: {error}", hint="save it as CSV with a header, in UTF-8") from None


def _point(line: int, row: Mapping[str, str], table: str) -> Point | None:
    """The point of a row; None where its number of GPUs was not published, and nothing can be compared.

    A table without series is one, of its own name.
    """

    def stated(column: str) -> Figure | None:
        return _figure(row[column], column, line) if row.get(column) else None

    gpus = stated("gpus")
    if gpus is None:
        return None
    notes = {name: value for name, value in row.items() if value and name not in COLUMNS}
    notes |= _notes(row.get("notes", ""))
    return Point(
        line=line,
        series=row.get("series") or table,
        setup=tuple(row.get(column, "") for column in SETUP),
        gpus=round(gpus.middle),
        nodes=round(nodes.middle) if (nodes := stated("nodes")) is not None else None,
        rate=_within(stated("images_per_sec"), notes),
        speedup=_or_cut(stated("speedup")),
        efficiency=stated("efficiency"),
        seconds=stated("train_time_s"),
        notes=notes,
    )


def _within(rate: Figure | None, notes: Mapping[str, str]) -> Figure | None:
    """A rate as its interval (notes ``images_per_sec_low`` and ``_high``), where that is stated and holds it."""
    try:
        low, high = (Figure.printed(notes.get(f"images_per_sec_{end}", "")) for end in ("low", "high"))
    except ValueError:
        return rate
    return rate if rate is None or not low.low <= rate.middle <= high.high else Figure(low.low, high.high, rate.stated)


def _or_cut(figure: Figure | None) -> Figure | None:
    """Also values that were cut off instead of rounded: many publish speed-ups so."""
    return None if figure is None else Figure(figure.low, figure.high + (figure.high - figure.low) / 2)


def _notes(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _add_epoch(curves: dict[str, Curve], line: int, row: Mapping[str, str]) -> None:
    number, end, rate = (_figure(row[name], name, line).middle for name in ("epoch", "wall_time", "throughput_img_s"))
    top1, top5 = (
        None if not row.get(name) else _figure(row[name], name, line).middle for name in ("top1_val", "top5_val")
    )
    curve = curves.setdefault(row["run"], Curve(run=row["run"]))
    curve.epochs.append(Epoch(line=line, number=round(number), end_s=end, rate=rate, top1=top1, top5=top5))


def _figure(text: str, name: str, line: int) -> Figure:
    try:
        return Figure.printed(text)
    except ValueError as error:
        raise BadInput(f"line {line}: {name}: {error}") from None
