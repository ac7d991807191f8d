"""A comparison as one section: the decision, and each metric with its change."""

from __future__ import annotations

from allpull.report.html.block import Block, Part, Points, Table
from allpull.report.terminal.compare import STYLES, change, headline, shown_metrics, value
from allpull.schema.compared import CompareResult


def block(result: CompareResult) -> Block:
    """The table of metrics below the decision, with the gates and notes."""
    table = Table(
        caption=f"Change of each metric, with its {100 * result.confidence:g} % interval",
        columns=("metric", "before", "after", "change", ""),
        rows=[
            (
                one.metric,
                value(one, one.before),
                value(one, one.after),
                change(one),
                one.decision if one.decision in STYLES else "",
            )
            for one in shown_metrics(result)
        ],
    )
    parts: list[Part] = [table]
    lines = [*(f"gate {one.outcome}: {one.gate}: {one.words}" for one in result.gates), *result.notes]
    if lines:
        parts.append(Points(items=lines))
    return Block(title="Before and after", lead=headline(result).plain, parts=parts)
