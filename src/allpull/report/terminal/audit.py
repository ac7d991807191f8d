"""An audit on a terminal: the findings of each series, slips first."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from allpull.report.printable import printable
from allpull.report.terminal.table import bullets
from allpull.schema.audited import AuditFinding, AuditResult
from allpull.units import counted


def audited(result: AuditResult) -> RenderableType:
    """What was checked, then each series with what does not follow from its numbers, then what was not checked."""
    slips = sum(finding.kind == "slip" for finding in result.findings)
    others = len(result.findings) - slips
    parts: list[RenderableType] = [
        Text(f"{counted(result.rows, 'row')}: {counted(slips, 'slip')}, {counted(others, 'observation')}.")
    ]
    for series, findings in groupby(result.findings, key=lambda one: one.series):
        ordered = sorted(findings, key=lambda one: one.kind != "slip")
        parts += [Text(), Text(printable(series), style="bold"), bullets([_line(finding) for finding in ordered])]
    if result.notes:
        parts += [Text(), Text("Not checked:"), bullets(result.notes)]
    return Group(*parts)


def _line(finding: AuditFinding) -> str:
    rows = ", ".join(str(row) for row in finding.rows)
    return f"{finding.check} ({'line' if len(finding.rows) == 1 else 'lines'} {rows}): {finding.text}."
