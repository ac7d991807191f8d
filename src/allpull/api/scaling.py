"""Several runs side by side, and the report of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from allpull.analyse.run import detail
from allpull.analyse.summary import scaling_table
from allpull.api.results import Scaling
from allpull.api.runs import Place, Run, as_runs, in_order
from allpull.errors import BadInput
from allpull.explain.detail import detail as drawn
from allpull.explain.explanation import explain
from allpull.explain.scaling import words
from allpull.schema.base import tag
from allpull.schema.reported import ScalingReport


def scaling(runs: Run | Place | Iterable[Run | Place]) -> Scaling:
    """The scaling table of several runs: throughput, speed-up and efficiency against the one with the fewest ranks.

    Args:
        runs: runs, run directories, or folders of them.

    Raises:
        RunDirError: one of them cannot be read.
    """
    return Scaling.of(scaling_report(as_runs(runs)))


def report(runs: Run | Place | Iterable[Run | Place], path: Place, *, figures: Place | None = None) -> Path:
    """Write one self-contained HTML report of one or several runs; the whole path of the page.

    Args:
        runs: runs, run directories, or folders of them.
        path: file to write; it is replaced once the page is complete.
        figures: folder for each chart as PNG, SVG and PDF; None: no such files.

    Raises:
        RunDirError: one of the runs cannot be read.
        BadInput: ``path`` or ``figures`` cannot be written.
    """
    return write_report(with_explanation(as_runs(runs)), Path(path), figures=None if figures is None else Path(figures))


def scaling_report(runs: Sequence[Run]) -> ScalingReport:
    """Metrics and details of ``runs``, by ranks, without an explanation.

    Raises:
        BadInput: there are no runs.
    """
    if not runs:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    ordered = [run.aligned for run in in_order(runs)]
    show = scaling_table(ordered)
    details = [detail(run, metrics) for run, metrics in zip(ordered, show.runs, strict=True)]
    return ScalingReport(schema=tag("report"), show=show, words=words(show, details), details=details)


def with_explanation(runs: Sequence[Run]) -> ScalingReport:
    """What a report shows of ``runs``: their metrics, and the explanation of the one with most ranks."""
    result = scaling_report(runs)
    ordered = [run.aligned for run in in_order(runs)]
    largest = max(ordered, key=lambda run: run.data.record.ranks)
    made = explain(largest, [run for run in ordered if run.data.record.ranks < largest.data.record.ranks])
    if made.window is None:
        return result
    return result.model_copy(update={"explained": [drawn(made.result, made.window, made.blame)]})


def write_report(result: ScalingReport, path: Path, *, figures: Path | None = None) -> Path:
    """Write the page of ``result`` to ``path``, and its charts into the folder ``figures``; the whole path of the page.

    Raises:
        BadInput: they cannot be written.
    """
    from allpull.report.html.figures import write_figures  # noqa: PLC0415  charts take long to import
    from allpull.report.html.page import write  # noqa: PLC0415  as above

    write(result, path)
    if figures is not None:
        write_figures(result, figures)
    return path.resolve()
