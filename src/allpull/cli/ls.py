"""``allpull ls``: the runs of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli import completion
from allpull.cli.options import AsJson
from allpull.cli.say import answer_json, show_result

EXAMPLE = "allpull ls runs"


def ls(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run directories, or folders of them. [default: runs]",
            metavar="RUN…",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first.

    Wherever a run is asked for, `latest`, the beginning of its id, or its name will do. A study, and the folder that
    holds `runs`, stand for their runs. Runs of a folder that cannot be read are listed with the reason.
    """
    from allpull.api.listing import list_runs  # noqa: PLC0415  polars is not needed for --help

    result = list_runs(runs or [Path("runs")])
    if as_json:
        answer_json(result)
        return
    from allpull.report.terminal.listing import listing  # noqa: PLC0415

    show_result(listing(result))
