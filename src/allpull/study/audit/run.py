"""Audit published measurements: read the tables, apply every check to every series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allpull.published import tables
from allpull.published.tables import read_tables
from allpull.schema.audited import AuditResult
from allpull.schema.base import tag
from allpull.study.audit.checks import CHECKS
from allpull.units import counted

PUBLISHED = tuple(Path(tables.__file__).parent / name for name in ("scaling.csv", "hal_epochs.csv"))
"""Measurements of others, as published, with their sources."""


def audit_tables(paths: Sequence[Path]) -> AuditResult:
    """What the tables at ``paths`` contradict in themselves.

    Raises:
        BadInput: a file is missing, or is no such table.
    """
    published = read_tables(paths)
    series = published.series()
    findings = [finding for points in series.values() for check in CHECKS for finding in check(points, published)]
    notes = []
    without = [name for name, points in series.items() if not any(point.rate or point.seconds for point in points)]
    if without:
        notes.append(f"no rate and no time is published in {len(without)} series: {', '.join(without[:10])}")
    if published.unsized:
        notes.append(f"{counted(published.unsized, 'row')} without a number of GPUs")
    if unread := [f"line {point.line}: {key}" for point in published.points for key in point.unread_notes]:
        notes.append(f"{counted(len(unread), 'note')} that should be numbers: {', '.join(unread[:10])}")
    named = {point.notes.get("curve") for point in published.points}
    if unused := [run for run in published.curves if run not in named]:
        notes.append(f"no row has a note curve={unused[0]}: {counted(len(unused), 'run')} of epochs not used")
    return AuditResult(
        schema=tag("audit"),
        files=[str(path) for path in paths],
        rows=len(published.points) + sum(len(one.epochs) for one in published.curves.values()),
        findings=findings,
        notes=notes,
    )
