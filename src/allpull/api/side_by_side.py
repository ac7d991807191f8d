"""The runs of all programs in one list, as `show --json` has them."""

from __future__ import annotations

from allpull.schema.base import tag
from allpull.schema.reported import ProgramTable, ScalingReport
from allpull.schema.results import ProgramRuns, ShowResult
from allpull.units import counted


def side_by_side(report: ScalingReport) -> ShowResult:
    """All runs of ``report`` in one list, with the table of each program."""
    tables: list[ProgramTable] = [report, *report.others]
    apart = [one.metrics for one in report.without_steps]
    runs = [run for one in tables for run in one.show.runs] + apart
    names = [run.run for run in apart]
    if len(tables) == 1:
        return report.show.model_copy(update={"runs": runs, "without_steps": names, "damaged": report.damaged})
    programs = [
        ProgramRuns(
            program=one.program,
            runs=[run.run for run in one.show.runs],
            reference=one.show.reference,
            scaling=one.show.scaling,
            notes=one.show.notes,
        )
        for one in tables
    ]
    notes = [f"{counted(len(programs), 'program')}: only runs of one program are compared"]
    return ShowResult(
        schema=tag("show"),
        runs=runs,
        reference=None,
        scaling=None,
        notes=notes,
        programs=programs,
        without_steps=names,
        damaged=report.damaged,
    )
