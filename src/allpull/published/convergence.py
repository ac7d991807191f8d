"""Epochs to an accuracy at a global batch, as published for named recipes."""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from allpull.errors import BadInput, UnknownName
from allpull.published.figures import Figure

TABLE = Path(__file__).parent / "epochs_to_accuracy.csv"
COLUMNS = ("source", "rcp", "global_batch", "all_epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePoint:
    """Trainings of one recipe at one global batch; ``epochs`` holds what each of them took to the target."""

    edition: str
    name: str
    global_batch: int
    epochs: tuple[int, ...]

    @property
    def mean_epochs(self) -> float:
        """Their mean."""
        return statistics.fmean(self.epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """What the epochs belong to: another optimizer, target, data set or augmentation has other ones."""

    name: str
    network: str
    optimizer: str
    target: str
    samples: int
    source: str


MLPERF_LARS = PublishedRecipe(
    name="mlperf-lars-75.9",
    network="ResNet-50 v1.5",
    optimizer="LARS, polynomial decay",
    target="75.9 % top-1 on ImageNet's validation images",
    samples=1_281_167,  # ILSVRC 2012 (Russakovsky et al. 2015, table 2)
    source="MLPerf Training's reference convergence points, github.com/mlcommons/logging",
)
RECIPES = {MLPERF_LARS.name: MLPERF_LARS}


def published_recipe(name: str) -> PublishedRecipe:
    """The recipe called ``name``.

    Raises:
        UnknownName: no epochs were published under that name.
    """
    if name not in RECIPES:
        raise UnknownName("published recipe", name, RECIPES)
    return RECIPES[name]


def editions(table: Path = TABLE) -> list[str]:
    """The rounds of MLPerf that published reference points, oldest first."""
    return sorted({point.edition for point in _points(table)}, key=_version)


def reference_points(edition: str | None = None, table: Path = TABLE) -> list[ReferencePoint]:
    """The points that one edition published, smallest batch first; of the latest edition without ``edition``.

    Raises:
        UnknownName: there is no such edition.
        BadInput: the table cannot be read; names the line.

    >>> [(point.global_batch, point.mean_epochs) for point in reference_points("1.0.0")[:2]]
    [(1632, 35.0), (2048, 38.4)]
    """
    points = _points(table)
    known = sorted({point.edition for point in points}, key=_version)
    if edition is not None and edition not in known:
        raise UnknownName("edition", edition, known)
    wanted = edition or known[-1]
    return sorted((one for one in points if one.edition == wanted), key=lambda one: one.global_batch)


def _version(edition: str) -> tuple[int, ...]:
    return tuple(int(part) for part in edition.split(".") if part.isdecimal())


def _points(table: Path) -> list[ReferencePoint]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="", strict=True)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or [])]
            if missing:
                raise BadInput(f"{table}: no column {', '.join(missing)}", hint=f"columns are {', '.join(COLUMNS)}")
            points = [_point(table, reader.line_num, row) for row in reader]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{table} cannot be read: {error}", hint="give a CSV file in UTF-8") from None
    if not points:
        raise BadInput(f"{table} has no rows", hint="one row is one global batch of one edition")
    return points


def _point(table: Path, line: int, row: dict[str, str]) -> ReferencePoint:
    try:
        batch = round(Figure.printed(row["global_batch"]).middle)
        epochs = tuple(round(Figure.printed(text).middle) for text in row["all_epochs"].split("/"))
    except ValueError as error:
        raise BadInput(f"{table}: line {line}: {error}", hint="global_batch and all_epochs are positive") from None
    _, _, path = row["source"].partition("training_")
    return ReferencePoint(edition=path.partition("/")[0] or "0", name=row["rcp"], global_batch=batch, epochs=epochs)
