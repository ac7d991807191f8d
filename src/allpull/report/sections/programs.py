"""The runs of other programs, which are not compared with those of the report, and those without a step."""

from __future__ import annotations

from allpull.report.html.block import Block, Part, Points, Text
from allpull.report.printable import short
from allpull.report.sections.runs import table
from allpull.report.wording import NAME_CHARACTERS, without_steps
from allpull.schema.reported import ScalingReport
from allpull.units import counted

TITLE = "Other programs"


def block(report: ScalingReport) -> Block | None:
    """A table per other program; None where all runs are of one."""
    parts: list[Part] = []
    for other in report.others:
        parts.append(table(other.show, caption=short(other.program, NAME_CHARACTERS)))
        parts += [Points(items=other.words[:1])] if other.words else []
    if report.without_steps:
        parts.append(Text(text="Without a step, in no table:"))
        parts.append(Points(items=[without_steps(run) for run in report.without_steps]))
    if report.damaged:
        parts.append(Text(text="Not readable:"))
        parts.append(Points(items=report.damaged))
    if not parts:
        return None
    lead = (
        f"The rest of this page is about {short(report.program, NAME_CHARACTERS)}. The runs of "
        f"{counted(len(report.others), 'other program')} are not compared with it: a sample is other work there. "
        "For a page of their own, name their directories to allpull report."
    )
    apart = "These runs made no step." if report.without_steps else "These runs are not part of this page."
    return Block(title=TITLE if report.others else "Other runs", lead=lead if report.others else apart, parts=parts)
