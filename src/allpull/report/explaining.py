"""Which explanation a report draws: that of the run with most ranks, about which people ask."""

from __future__ import annotations

from allpull.schema.explained import ExplainDetail
from allpull.schema.reported import ScalingReport


def explained(report: ScalingReport) -> ExplainDetail | None:
    """The explanation of the run with most ranks; None where no run could be explained."""
    return max(report.explained, key=lambda one: one.result.ranks, default=None)
