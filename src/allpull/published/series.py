"""Published series that are drawn under a study: points of ``scaling.csv``, curves of ``hal_epochs.csv``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from allpull.errors import UnknownName
from allpull.schema.studied import PublishedCurve, PublishedEpoch, PublishedPoint, PublishedSeries

FOLDER = Path(__file__).parent
CAVEATS = ("caveat", "note", "read")
"""Notes that a reader needs before comparing: what is wrong, what is meant, how it was read off."""
_INFERRED = "precision not stated, the framework's default assumed"

_Row = Mapping[str, str]


def published_series(names: Iterable[str]) -> list[PublishedSeries]:
    """The series called ``names``, in that order.

    Raises:
        UnknownName: there is no such series.
    """
    known = _by_series()
    series = []
    for name in names:
        if name not in known:
            raise UnknownName("published series", name, known, hint="see `allpull study audit --published --json`")
        series.append(_series(name, known[name]))
    return series


def series_names() -> list[str]:
    """Every published series, in the order of the table."""
    return list(_by_series())


@cache
def _by_series() -> dict[str, list[_Row]]:
    """Rows of each series that state a number of GPUs; the two that do not are rates per GPU of no stated job."""
    grouped: dict[str, list[_Row]] = {}
    for row in _rows("scaling.csv"):
        if row["gpus"]:
            grouped.setdefault(row["series"], []).append(row)
    return grouped


def _rows(name: str) -> list[_Row]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _series(name: str, rows: list[_Row]) -> PublishedSeries:
    points = [_point(row) for row in rows]
    curves = {point.curve for point in points if point.curve}
    return PublishedSeries(
        series=name,
        model=_distinct(row["model"] for row in rows),
        framework=_distinct(row["framework"] for row in rows),
        source=_distinct(row["source"] for row in rows),
        points=points,
        curves=_curves(curves) if curves else [],
    )


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _point(row: _Row) -> PublishedPoint:
    notes = parse_notes(row["notes"])
    caveats = [notes[key] for key in CAVEATS if key in notes]
    return PublishedPoint(
        ranks=int(row["gpus"]),
        nodes=_whole(row["nodes"]),
        batch_per_rank=_whole(row["batch_per_gpu"]),
        precision=row["precision"] or None,
        images_per_s=_number(row["images_per_sec"]),
        speedup=_number(row["speedup"]),
        speedup_base=notes.get("speedup_base"),
        efficiency=_number(row["efficiency"]),
        train_time_s=_number(row["train_time_s"]),
        epoch_time_s=_number(notes.get("epoch_time_s", "")),
        workers=_whole(notes.get("workers", "")),
        gpu=row["gpu"],
        parallel_efficiency=_number(notes.get("POP_parallel_efficiency", "")),
        load_balance=_number(notes.get("POP_load_balance", "")),
        communication_efficiency=_number(notes.get("POP_comm_efficiency", "")),
        curve=notes.get("curve"),
        caveat="; ".join([*caveats, *([_INFERRED] if "prec_inferred" in notes else [])]) or None,
    )


def parse_notes(text: str) -> dict[str, str]:
    """The ``key=value`` pairs of a column ``notes``; a part without a key goes on with the value before it.

    >>> parse_notes("data=real; caveat=read off a chart; +-1 %; workers=16")
    {'data': 'real', 'caveat': 'read off a chart; +-1 %', 'workers': '16'}
    """
    notes: dict[str, str] = {}
    last = None
    for part in (part.strip() for part in text.split(";")):
        key, equals, value = part.partition("=")
        if equals and (key := key.strip()):
            notes[last := key] = value.strip()
        elif last is not None and part:
            notes[last] += f"; {part}"
    return notes


def _number(text: str) -> float | None:
    """A number; None for no number. "~0.99" is 0.99; "5.0-6.0", a range, is None.

    >>> _number("~0.99"), _number(""), _number("5.0-6.0")
    (0.99, None, None)
    """
    try:
        return float(text.strip().removeprefix("~"))
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    number = _number(text)
    return round(number) if number is not None else None


def _curves(runs: set[str]) -> list[PublishedCurve]:
    """The learning curves of ``runs``, fewest ranks first."""
    rows: dict[str, list[_Row]] = {}
    for row in _rows("hal_epochs.csv"):
        if row["run"] in runs:
            rows.setdefault(row["run"], []).append(row)
    curves = [
        PublishedCurve(
            run=run,
            ranks=int(epochs[0]["gpus"]),
            batch_per_rank=_whole(epochs[0]["batch_per_gpu"]),
            epochs=[_epoch(row, float(epochs[0]["wall_time"])) for row in epochs],
        )
        for run, epochs in rows.items()
    ]
    return sorted(curves, key=lambda curve: curve.ranks)


def _epoch(row: _Row, first_end_s: float) -> PublishedEpoch:
    return PublishedEpoch(
        epoch=int(row["epoch"]),
        end_s=float(row["wall_time"]) - first_end_s,
        images_per_s=_number(row["throughput_img_s"]),
        train_top1=_share(row["top1_train"]),
        train_top5=_share(row["top5_train"]),
        test_top1=_share(row["top1_val"]),
        test_top5=_share(row["top5_val"]),
    )


def _share(text: str) -> float | None:
    percent = _number(text)
    return percent / 100 if percent is not None else None
