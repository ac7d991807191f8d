"""The sections of a report, in reading order.

A new section is one file with ``block(report) -> Block``, or None where it has nothing to say, and one line here.
Entry points of the group
``allpull.sections`` come after the built-in ones, by name.
"""

from __future__ import annotations

from allpull.registry import Table
from allpull.report.html.block import Block
from allpull.schema.reported import ScalingReport

SECTIONS = Table(
    kind="report section",
    group="allpull.sections",
    builtin={
        "summary": "allpull.report.sections.summary:block",
        "findings": "allpull.report.sections.findings:block",
        "runs": "allpull.report.sections.runs:block",
        "losses": "allpull.report.sections.losses:block",
        "pop": "allpull.report.sections.pop:block",
        "epochs": "allpull.report.sections.epochs:block",
        "throughput": "allpull.report.sections.throughput:block",
        "phases": "allpull.report.sections.phases:block",
        "timeline": "allpull.report.sections.timeline:block",
        "lateness": "allpull.report.sections.lateness:block",
        "steps": "allpull.report.sections.steps:block",
        "usage": "allpull.report.sections.usage:block",
        "operators": "allpull.report.sections.operators:block",
        "learning": "allpull.report.sections.learning:block",
        "programs": "allpull.report.sections.programs:block",
        "environment": "allpull.report.sections.environment:block",
        "method": "allpull.report.sections.method:block",
    },
)


def names() -> list[str]:
    """The sections from top to bottom."""
    builtin = list(SECTIONS.builtin)
    return [*builtin, *(name for name in SECTIONS.names() if name not in SECTIONS.builtin)]


def blocks(report: ScalingReport) -> dict[str, Block]:
    """Every section of ``report`` that is not empty, by name, in order."""
    made = ((name, SECTIONS.load(name)(report)) for name in names())
    return {name: block for name, block in made if block is not None}
