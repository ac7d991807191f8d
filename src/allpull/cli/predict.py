"""``allpull predict``: what the next cluster sizes will do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer_json, show_result
from allpull.errors import BadInput

EXAMPLE = "allpull predict --table results.csv --series ours --ranks 64,128"

REFUSED = 3  # exit code: these measurements cannot tell


def predict(
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE.csv", help="Table of sizes; without it, the published one.")
    ] = None,
    series: Annotated[str | None, typer.Option("--series", metavar="NAME", help="Series of the table.")] = None,
    calibrate: Annotated[
        int, typer.Option("--calibrate", metavar="N", help="How many of the smallest sizes to predict from.")
    ] = 2,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="N,…", help="Sizes to predict beyond those in the table.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict larger sizes of a series from its smallest.

    Each answer has a 90 % interval, as wide as the errors on published series that were held back. Exit code 3: these
    measurements cannot tell.
    """
    from allpull.predict.table.series import PUBLISHED, predict_series  # noqa: PLC0415  numpy is not needed for --help

    if series is None:
        raise BadInput("no series was named", hint="add --series NAME; NAME is in the column series of the table")
    result = predict_series(table or PUBLISHED, series, calibrate=calibrate, ranks=_sizes(ranks or ""))
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.predict import predicted  # noqa: PLC0415

        show_result(predicted(result))
    if result.refused is not None:
        raise typer.Exit(REFUSED)


def _sizes(text: str) -> list[int]:
    """The numbers of a list such as ``8,64``.

    Raises:
        BadInput: there is something else in it.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and 0 < len(word) < 8)]
    if wrong:
        raise BadInput(f"--ranks {text!r}: {wrong[0]!r} is no number of ranks", hint="such as --ranks 8,64,1024")
    return [int(word) for word in words]
