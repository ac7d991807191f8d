"""``allpull report``: one self-contained HTML page, and figures for a proposal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import Accuracy, Runs, SkipDamaged
from allpull.cli.say import answer, note
from allpull.output_folder import make_folder

EXAMPLE = "allpull report runs --output report.html --figures figures"

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="File to write. [default: report.html next to the runs, or in the study]"
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="Also write each chart as PNG, SVG and PDF into this folder; of a study also points.csv and paragraph.md.",
    ),
]


def report(
    runs: Runs,
    output: Output = None,
    figures: Figures = None,
    accuracy: Accuracy = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Write one self-contained HTML report of runs, or of a study."""
    from allpull.study.directory import is_study  # noqa: PLC0415  pydantic is not needed for --help

    if figures is not None:
        make_folder(figures, hint="choose another folder (--figures)")
    if len(runs) == 1 and is_study(runs[0]):
        written = _study(runs[0], output, figures)
    elif len(runs) == 1 and (tuned := _tuning(runs[0], output, figures)) is not None:
        written = tuned
    else:
        written = _runs(runs, output, figures, accuracy, skip_damaged=skip_damaged)
    page, *charts = written
    for chart in charts:
        note(f"figure: {chart}")
    answer(str(page))


def _study(directory: Path, output: Path | None, figures: Path | None) -> list[Path]:
    from allpull.api.study_report import study_report, write_study_report  # noqa: PLC0415  polars is not needed for --help

    return write_study_report(study_report(directory), output or directory / "report.html", figures)


def _tuning(directory: Path, output: Path | None, figures: Path | None) -> list[Path] | None:
    """The page of the tuning in ``directory``; None where there is none."""
    from allpull.study.directory import tuning_in  # noqa: PLC0415  as above

    if tuning_in(directory) is None:
        return None
    from allpull.api.study_report import write_tuning_report  # noqa: PLC0415  polars is not needed for --help

    return write_tuning_report(directory, output or directory / "report.html", figures)


def _runs(
    runs: list[Path], output: Path | None, figures: Path | None, accuracy: float | None, *, skip_damaged: bool
) -> list[Path]:
    from allpull.api.reporting import with_explanation, write_report  # noqa: PLC0415
    from allpull.api.runs import readable_runs  # noqa: PLC0415  polars is not needed for --help

    opened, damaged = readable_runs(runs, skip_damaged=skip_damaged)
    for line in damaged:
        note(f"not readable: {line}")
    result = with_explanation([run.aligned for run in opened], accuracy).model_copy(update={"damaged": damaged})
    return write_report(result, output or opened[0].directory.parent / "report.html", figures)
