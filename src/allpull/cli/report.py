"""``allpull report``: one self-contained HTML page, and figures for a proposal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import Accuracy, Runs, SkipDamaged
from allpull.cli.say import answer, note

EXAMPLE = "allpull report runs --output report.html --figures figures"

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="File to write. [default: report.html next to the runs]"),
]
Figures = Annotated[
    Path | None,
    typer.Option("--figures", metavar="DIR", help="Also write each chart as PNG, SVG and PDF into this folder."),
]


def report(
    runs: Runs,
    output: Output = None,
    figures: Figures = None,
    accuracy: Accuracy = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Write one self-contained HTML report of runs."""
    from allpull.api.reporting import with_explanation, write_report  # noqa: PLC0415
    from allpull.api.runs import each_run  # noqa: PLC0415  polars is not needed for --help

    opened = each_run(runs, skip_damaged=skip_damaged)
    result = with_explanation([run.aligned for run in opened], accuracy)
    page, *charts = write_report(result, output or opened[0].directory.parent / "report.html", figures)
    for chart in charts:
        note(f"figure: {chart}")
    answer(str(page))
