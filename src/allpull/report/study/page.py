"""Write a study as one page, and its figures, table and paragraph into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from allpull.errors import BadInput
from allpull.report.atomic_file import place
from allpull.report.figures import place_figures
from allpull.report.html.block import Block
from allpull.report.page import Page, render_page
from allpull.report.printable import short
from allpull.report.study import answer, axes, efficiencies, learning, method, points, proposal, scaling, times, tuning
from allpull.report.study.content import StudyReport
from allpull.report.wording import NAME_CHARACTERS, joined
from allpull.schema.tuned import TuneResult
from allpull.units import counted, show_time

SECTIONS: dict[str, Callable[[StudyReport], Block | None]] = {
    "answer": answer.block,
    "weak": scaling.weak,
    "strong": scaling.strong,
    "times": times.block,
    "settings": axes.block,
    "efficiency": efficiencies.block,
    "learning": learning.block,
    "tuning": tuning.block,
    "points": points.block,
    "changed": points.changed,
    "audit": method.audit,
    "method": method.method,
}
"""The sections of the page, from top to bottom."""


def blocks(report: StudyReport) -> dict[str, Block]:
    """Every section of ``report`` that is not empty, by name, in order."""
    made = ((name, make(report)) for name, make in SECTIONS.items())
    return {name: block for name, block in made if block is not None}


def render(report: StudyReport) -> str:
    """The whole page. A report always gives the same text.

    Raises:
        BadInput: the study has no point.
    """
    study = report.study
    if not study.points:
        raise BadInput("the study has no point", hint="see allpull study plan")
    sizes = sorted({point.ranks for point in study.points})
    facts = [counted(len(study.points), "point"), f"on {joined([f'{size:,}' for size in sizes])} ranks"]
    days = sorted({detail.created_utc[:10] for detail in report.details.values()})
    facts += [days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"] if days else []
    title = study.title or study.name
    page = Page(
        kicker=f"Study {short(study.name, NAME_CHARACTERS)}",
        subject=short(title, 2 * NAME_CHARACTERS),
        facts=" · ".join(facts),
        blocks=blocks(report),
    )
    return render_page(page)


def render_tuning(result: TuneResult) -> str:
    """The page of a tuning in whose directory nothing else was measured."""
    trials = f"{counted(len(result.trials), 'trial')} · {show_time(result.seconds)}"
    return render_page(
        Page(
            kicker=f"Tuning {short(result.name, NAME_CHARACTERS)}",
            subject=short(result.title or result.name, 2 * NAME_CHARACTERS),
            facts=trials,
            blocks={"tuning": tuning.tuning_block(result)},
        )
    )


def write_tuning(result: TuneResult, path: Path, figures: Path | None) -> list[Path]:
    """Write the page of a tuning to ``path``, and its chart into ``figures``; every path, the page first.

    Raises:
        BadInput: ``path`` or ``figures`` cannot be written.
    """
    written = place(path, render_tuning(result).encode("utf-8"))
    return [written, *(place_figures([tuning.tuning_block(result)], figures) if figures is not None else ())]


def write(report: StudyReport, path: Path) -> Path:
    """Write the page to ``path``, replacing what is there only once the page is complete; returns ``path``.

    Raises:
        BadInput: the study has no point, or ``path`` cannot be written.
    """
    return place(path, render(report).encode("utf-8"))


def write_figures(report: StudyReport, directory: Path) -> list[Path]:
    """Write each chart as PNG, SVG and PDF, ``points.csv`` and ``paragraph.md`` to ``directory``; returns the paths.

    Raises:
        BadInput: ``directory`` cannot be written.
    """
    return [
        place(directory / "paragraph.md", proposal.paragraph(report).encode("utf-8")),
        place(directory / "points.csv", proposal.table(report).encode("utf-8")),
        *place_figures(blocks(report).values(), directory),
    ]
