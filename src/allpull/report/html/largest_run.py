"""Select the explanation that a report draws: that of the run with the most ranks."""

from __future__ import annotations

from dataclasses import dataclass

from allpull.schema.explained import Efficiency, ExplainDetail, ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The explained run compared with its reference: speed-ups, and the two efficiencies that a page shows.

    ``efficiency`` is ``speedup ÷ ideal``, of steady steps; ``whole`` is global efficiency, of all steps of a window.
    """

    reference_ranks: int
    ideal: float
    speedup: float
    efficiency: float
    whole: float


def explained(report: ScalingReport) -> ExplainDetail | None:
    """The explanation of the run with the most ranks; None if no run could be explained."""
    return max(report.explained, key=lambda one: one.result.ranks, default=None)


def against(report: ScalingReport, result: ExplainResult) -> Against | None:
    """``result`` compared with its reference; None without one, or if its samples are different work."""
    tree, show = result.efficiency, report.show
    run = next((one for one in show.runs if one.run == result.run), None)
    reference = next((one for one in show.runs if one.run == result.reference), None)
    if tree is None or tree.computational is None or tree.global_ is None or run is None or reference is None:
        return None
    if show.reference != reference.run or run.speedup is None or run.efficiency is None or not run.efficiency > 0:
        return None
    return Against(
        reference_ranks=reference.ranks,
        ideal=run.speedup / run.efficiency,
        speedup=run.speedup,
        efficiency=run.efficiency,
        whole=tree.global_.value,
    )


def factor_of(tree: Efficiency, field: str) -> Interval | None:
    """One factor of the tree; None if it was not measured."""
    factor: Interval | None = getattr(tree, field)
    return factor
