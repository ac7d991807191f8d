"""Which operators take the time: self time of operators and kernels in a profiler window."""

from __future__ import annotations

from collections.abc import Iterator

from allpull.report.html.block import Block, Table
from allpull.report.printable import short
from allpull.report.wording import percent
from allpull.schema.operators import OperatorSummary
from allpull.schema.reported import ScalingReport
from allpull.units import counted, show_count, show_time

TITLE = "Operators in a profiler window"
NAME_CHARACTERS = 60
CAPTIONS = {"operator": "Operators on the CPU, by self time", "kernel": "Kernels on the accelerator"}


def block(report: ScalingReport) -> Block | None:
    """Tables of the largest operators and kernels; None without a profiler window."""
    summary = report.operators
    if summary is None:
        return None
    lead = (
        f"Rank {summary.rank} in {counted(summary.steps, 'step')} from step {summary.first_step}; the profiler itself "
        "makes these steps longer."
    )
    return Block(title=TITLE, lead=lead, parts=list(_tables(summary)))


def _tables(summary: OperatorSummary) -> Iterator[Table]:
    for kind, caption in CAPTIONS.items():
        total_s = summary.total_s.get(kind, 0.0)
        rows = [
            (
                short(one.name, NAME_CHARACTERS),
                show_count(one.calls / summary.steps),
                show_time(one.self_s / summary.steps),
                percent(one.self_s / total_s if total_s > 0 else None),
            )
            for one in summary.operators
            if one.kind == kind
        ]
        if rows:
            columns = ("Name", "Calls per step", "Self time per step", "Share of all")
            yield Table(caption=caption, columns=columns, rows=rows)
