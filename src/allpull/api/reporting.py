"""The results that `show` and `report` present for one or several runs, the report page, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import detail
from allpull.analyse.scaling import in_order, scaling_table
from allpull.errors import BadInput
from allpull.explain.detail import detail as drawn
from allpull.explain.explanation import explain
from allpull.explain.scaling import sentences
from allpull.schema.base import tag
from allpull.schema.reported import ScalingReport


def scaling_report(runs: Sequence[AlignedRun]) -> ScalingReport:
    """Metrics and details of ``runs``, by ranks, without an explanation.

    Raises:
        BadInput: there are no runs.
    """
    if not runs:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    ordered = in_order(runs)
    show = scaling_table(ordered)
    details = [detail(run, metrics) for run, metrics in zip(ordered, show.runs, strict=True)]
    return ScalingReport(schema=tag("report"), show=show, words=sentences(show, details), details=details)


def with_explanation(runs: Sequence[AlignedRun]) -> ScalingReport:
    """What a report shows of ``runs``: their metrics, and the explanation of the one with most ranks.

    Raises:
        BadInput: there are no runs.
    """
    result = scaling_report(runs)
    ordered = in_order(runs)
    largest = max(ordered, key=lambda run: run.data.record.ranks)
    made = explain(largest, [run for run in ordered if run.data.record.ranks < largest.data.record.ranks])
    if made.window is None:
        return result
    return result.model_copy(update={"explained": [drawn(made.result, made.window, made.blame)]})


def write_report(result: ScalingReport, path: Path, figures: Path | None = None) -> list[Path]:
    """Write the page of ``result`` to ``path``, and each chart into the folder ``figures``; every path, the page first.

    Raises:
        BadInput: ``path`` or ``figures`` cannot be written.
    """
    from allpull.report.figures import write_figures  # noqa: PLC0415  charts take long to import
    from allpull.report.page import write  # noqa: PLC0415  as above

    write(result, path)
    return [path.resolve(), *(write_figures(result, figures) if figures is not None else ())]
