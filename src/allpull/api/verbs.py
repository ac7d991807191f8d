"""Explain, compare and report runs, or the runs at a place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from allpull.analyse.scaling import in_order
from allpull.api.explanation import explain_run, kept_explanation
from allpull.api.reporting import scaling_report, with_explanation, write_report
from allpull.api.results import Comparison, Explanation, Scaling
from allpull.api.runs import Place, Run, as_runs
from allpull.compare import comparison, gate, known_variation
from allpull.errors import BadInput


def scaling(runs: Run | Place | Iterable[Run | Place]) -> Scaling:
    """The scaling table of several runs: throughput, speed-up and efficiency against the one with the fewest ranks.

    Args:
        runs: runs, run directories, or folders of them.

    Raises:
        RunDirError: one of them cannot be read.
    """
    return Scaling.of(scaling_report([run.aligned for run in as_runs(runs)]))


def explain(
    runs: Run | Place | Iterable[Run | Place], reference: Run | Place | Iterable[Run | Place] | None = None
) -> Explanation:
    """Explain the run with the most ranks: its efficiency tree, its findings, and what each remedy gains.

    The answer is kept in the run directory, as ``allpull explain`` keeps it.

    Args:
        runs: runs, run directories, or folders of them; the others are references.
        reference: more runs of the same training on other numbers of ranks; efficiency is measured against the one
            with the fewest ranks.

    Raises:
        RunDirError: one of them cannot be read.
        BadInput: no run was given.
    """
    given = [run.aligned for run in as_runs(runs)]
    if not given:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    run = in_order(given)[-1]
    references = [] if reference is None else [one.aligned for one in as_runs(reference)]
    return explain_run(run, [*(one for one in given if one is not run), *references])


def compare(
    before: Run | Place | Iterable[Run | Place],
    after: Run | Place | Iterable[Run | Place],
    *,
    metrics: Sequence[str] = (),
    fail_if: Sequence[str] = (),
    between_run: str | None = None,
    anyway: bool = False,
    skip_damaged: bool = False,
) -> Comparison:
    """Compare the runs ``before`` a change with the runs ``after`` it, with intervals.

    Args:
        before: runs, run directories, or folders of them; three or more show the run-to-run variation.
        after: the same.
        metrics: compare only these; the first one decides. Empty: all, and throughput decides.
        fail_if: gates such as ``throughput < -3%``; each becomes one of ``Comparison.gates``.
        between_run: run-to-run variation, for fewer than three runs per side: a standard deviation such as ``0.8%``,
            or the path of a file with the output of ``allpull compare --json``.
        anyway: compare the runs even if they differ in facts that must agree.
        skip_damaged: skip lines of records that cannot be read.

    Raises:
        RunDirError: one of the runs cannot be read.
        UnknownName: there is no such metric.
        BadInput: a side is empty, a run is given twice on one side, key facts do not agree, a metric was not measured,
            or ``fail_if`` or ``between_run`` cannot be parsed.
    """
    options = comparison.Options(
        metrics=[gate.find_metric(name).name for name in metrics],
        gates=[gate.parse_gate(text) for text in fail_if],
        known_variation=known_variation.parse_known_variation(between_run) if between_run is not None else None,
        anyway=anyway,
    )
    sides = [[run.aligned for run in as_runs(side, skip_damaged=skip_damaged)] for side in (before, after)]
    explained = {run.data.record.id: kept_explanation(run) for side in sides for run in side}
    return Comparison.of(
        comparison.compare(comparison.Sides(before=sides[0], after=sides[1], explained=explained), options)
    )


def report(runs: Run | Place | Iterable[Run | Place], path: Place, *, figures: Place | None = None) -> Path:
    """Write one self-contained HTML report of one or several runs; returns the path of the page.

    Args:
        runs: runs, run directories, or folders of them.
        path: file to write; it is replaced once the page is complete.
        figures: folder for each chart as PNG, SVG and PDF; None: no such files.

    Raises:
        RunDirError: one of the runs cannot be read.
        BadInput: no run was given, or ``path`` or ``figures`` cannot be written.
    """
    result = with_explanation([run.aligned for run in as_runs(runs)])
    written = write_report(result, Path(path))
    if figures is not None:
        from allpull.report.html.figures import write_figures  # noqa: PLC0415  charts take long to import

        write_figures(result, Path(figures))
    return written
