"""The report of a study: its points, details and efficiencies of one run of each, and the audit of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import detail
from allpull.replay.pop import with_pop
from allpull.report.study.content import StudyReport
from allpull.rundir.read.run import read_run
from allpull.schema.pop import PopEfficiencies
from allpull.schema.results import RunDetail
from allpull.schema.studied import PointRun, StudyPoint
from allpull.study.audit.own import audit_study
from allpull.study.results import by_series, read_study
from allpull.study.tune.study_tuning import read_tuning

MOST_DETAILED = 64  # points whose runs are read again; each takes about as long as allpull show


def study_report(directory: Path) -> StudyReport:
    """What the page of the study in ``directory`` shows.

    Raises:
        RunDirError: it is no study, or cannot be read.
    """
    study = read_study(directory)
    audited = audit_study(study)
    details: dict[str, RunDetail] = {}
    pop: dict[str, PopEfficiencies] = {}
    for series in by_series(study.points):
        measured = [(point, run) for point in series if (run := _completed(point)) is not None]
        of_series, efficiencies = _read(directory, measured[: MOST_DETAILED - len(details)])
        details |= of_series
        pop |= efficiencies
    return StudyReport(
        study=study,
        details=details,
        pop=pop,
        findings=audited.findings,
        unchecked=audited.notes,
        tuning=read_tuning(directory),
    )


def write_tuning_report(directory: Path, path: Path, figures: Path | None = None) -> list[Path] | None:
    """Write the page of the tuning in ``directory``, where no study was run; None: there is no tuning either.

    Raises:
        RunDirError: its result cannot be read.
        BadInput: ``path`` or ``figures`` cannot be written.
    """
    result = read_tuning(directory)
    if result is None:
        return None
    from allpull.report.study.page import write_tuning  # noqa: PLC0415  charts take long to import

    return write_tuning(result, path, figures)


def write_study_report(result: StudyReport, path: Path, figures: Path | None = None) -> list[Path]:
    """Write the page of ``result`` to ``path``, and what a proposal needs into ``figures``; every path, the page first.

    Raises:
        BadInput: the study has no point, or ``path`` or ``figures`` cannot be written.
    """
    from allpull.report.study.page import write, write_figures  # noqa: PLC0415  charts take long to import

    write(result, path)
    return [path.resolve(), *(write_figures(result, figures) if figures is not None else ())]


def _completed(point: StudyPoint) -> PointRun | None:
    return next((run for run in point.runs if run.metrics is not None and run.run is not None), None)


def _read(
    directory: Path, measured: Sequence[tuple[StudyPoint, PointRun]]
) -> tuple[dict[str, RunDetail], dict[str, PopEfficiencies]]:
    """Details and POP efficiencies by point, of the runs of one series, the smallest first."""
    known = [
        (point, run.metrics.model_copy(update={"speedup": point.speedup and point.speedup.value}), run.run)
        for point, run in measured
        if run.metrics is not None and run.run is not None
    ]
    if not known:
        return {}, {}
    aligned = [AlignedRun(read_run(directory / run, skip_damaged=True)) for _, _, run in known]
    every = with_pop([metrics for _, metrics, _ in known], aligned, known[0][1].run)
    return (
        {point.id: detail(run, own) for (point, _, _), run, own in zip(known, aligned, every, strict=True)},
        {point.id: own.pop for (point, _, _), own in zip(known, every, strict=True) if own.pop is not None},
    )
