"""``allpull report``: one self-contained HTML page, and figures for a proposal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.say import answer, note
from allpull.cli.show import Runs, SkipDamaged

if TYPE_CHECKING:
    from allpull.schema.reported import ScalingReport


def report(
    runs: Runs,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.  [default: report.html beside the runs]")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write each chart as PNG, SVG and PDF into this folder.")
    ] = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Write one self-contained HTML report of the runs."""
    from allpull.cli.results import read_runs, reported, with_explanation  # noqa: PLC0415  not needed for --help
    from allpull.rundir.read.run import find_runs  # noqa: PLC0415

    read = read_runs(runs, skip_damaged=skip_damaged)
    result = with_explanation(reported(read), read)
    path = write(result, output or find_runs(runs[0])[0].resolve().parent / "report.html")
    if figures is not None:
        from allpull.report.html.figures import write_figures  # noqa: PLC0415

        for figure in write_figures(result, figures):
            note(f"figure: {figure}")
    answer(str(path))


def write(result: ScalingReport, path: Path) -> Path:
    """Write the HTML of ``result`` to ``path``; returns the whole path.

    Raises:
        AllpullError: it cannot be written.
    """
    from allpull.report.html.page import write as write_html  # noqa: PLC0415

    write_html(result, path)
    return path.resolve()
