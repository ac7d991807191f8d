"""The results that `show` and `report` present for one or several runs, the report page, and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.idle import accelerator_idle
from allpull.analyse.io.windows import over_time
from allpull.analyse.operators import operator_summary
from allpull.analyse.programs import by_program, has_steps, program, titles
from allpull.analyse.run import detail, metrics
from allpull.analyse.scaling import in_order, scaling_table
from allpull.analyse.usage import usage
from allpull.errors import BadInput
from allpull.explain.scaling import caveats, sentences
from allpull.replay.pop import with_pop
from allpull.replay.recording.build import Record, record_window
from allpull.schema.base import tag
from allpull.schema.reported import ProgramTable, ScalingReport
from allpull.schema.results import RunDetail, RunMetrics, ShowResult


def scaling_report(runs: Sequence[AlignedRun], accuracy: float | None = None) -> ScalingReport:
    """Metrics and details of ``runs``, by program and ranks, without an explanation.

    ``accuracy``: as for ``analyse.run.metrics``; None: as each training states it. The report is of the program whose
    largest run has the most ranks; ``others`` are of the other programs.

    Raises:
        BadInput: there are no runs.
    """
    return _report(*_split(runs), accuracy, record_window)


def with_explanation(runs: Sequence[AlignedRun], accuracy: float | None = None) -> ScalingReport:
    """What a report shows of ``runs``: their metrics, and the explanation of the one with most ranks.

    ``accuracy``: as for ``scaling_report``.

    Raises:
        BadInput: there are no runs.
    """
    from allpull.explain.detail import detail as drawn  # noqa: PLC0415  only what explains loads the rules
    from allpull.explain.explanation import explain  # noqa: PLC0415  as above

    programs, without_steps = _split(runs)
    record = lru_cache(maxsize=1)(record_window)  # the last window is that of the run that is explained
    result, of_program = _report(programs, without_steps, accuracy, record), programs[0]
    largest = of_program[-1]  # they are in order of ranks, then of time
    result = result.model_copy(update={"usage": usage(largest), "operators": operator_summary(largest.data)})
    smaller = [run for run in of_program if run.data.record.ranks < largest.data.record.ranks]
    made = explain(largest, smaller, record)
    if made.window is None:
        return result
    return result.model_copy(update={"explained": [drawn(made.result, made.window, made.blame)]})


def unscaled_report(runs: Iterable[AlignedRun]) -> ScalingReport:
    """Metrics and details of ``runs`` in their order, without a speed-up; none is kept when the next is asked for."""
    details = list(map(_own_detail, runs))
    show = ShowResult(schema=tag("show"), runs=[one.metrics for one in details], reference=None, scaling=None, notes=[])
    return ScalingReport(schema=tag("report"), show=show, words=[], details=details)


def _own_detail(run: AlignedRun) -> RunDetail:
    return detail(run, metrics(run))


def _report(
    programs: Sequence[Sequence[AlignedRun]],
    without_steps: Sequence[AlignedRun],
    accuracy: float | None,
    record: Record,
) -> ScalingReport:
    names = titles([program(members[0].data.record) for members in programs]) if len(programs) > 1 else [""]
    others = [_table(name, members, accuracy, record)[0] for name, members in zip(names[1:], programs[1:], strict=True)]
    table, details = _table(names[0], programs[0], accuracy, record)
    apart = [detail(run, metrics(run)) for run in without_steps]
    return ScalingReport(schema=tag("report"), **dict(table), details=details, others=others, without_steps=apart)


def _split(runs: Sequence[AlignedRun]) -> tuple[list[list[AlignedRun]], list[AlignedRun]]:
    """The runs of each program, and those without a step; where no run has one, none is set apart.

    Raises:
        BadInput: there are no runs.
    """
    if not runs:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    ordered = in_order(runs)
    trained = [run for run in ordered if has_steps(run.data)]
    if not trained:
        return by_program(ordered), []
    return by_program(trained), [run for run in ordered if not has_steps(run.data)]


def with_efficiencies(
    runs: Sequence[RunMetrics], aligned: Sequence[AlignedRun], reference: str | None, record: Record = record_window
) -> list[RunMetrics]:
    """``runs`` with POP efficiencies and the idle share of accelerators; ``aligned`` in their order."""
    measured = [run.model_copy(update={"idle": accelerator_idle(one)}) for run, one in zip(runs, aligned, strict=True)]
    return with_pop(measured, aligned, reference, record)


def _table(
    name: str, runs: Sequence[AlignedRun], accuracy: float | None, record: Record
) -> tuple[ProgramTable, list[RunDetail]]:
    show = scaling_table(runs, accuracy)
    if len(runs) == 1:  # of several, the series would be most of the JSON
        io = show.runs[0].io.model_copy(update={"over_time": over_time(runs[0])})
        show = show.model_copy(update={"runs": [show.runs[0].model_copy(update={"io": io})]})
    show = show.model_copy(update={"runs": with_efficiencies(show.runs, runs, show.reference, record)})
    details = [detail(run, measured) for run, measured in zip(runs, show.runs, strict=True)]
    return ProgramTable(
        program=name, show=show, words=sentences(show, details), caveats=caveats(show, details)
    ), details


def write_report(result: ScalingReport, path: Path, figures: Path | None = None) -> list[Path]:
    """Write the page of ``result`` to ``path``, and each chart into the folder ``figures``; every path, the page first.

    Raises:
        BadInput: ``path`` or ``figures`` cannot be written.
    """
    from allpull.report.figures import write_figures  # noqa: PLC0415  charts take long to import
    from allpull.report.page import write  # noqa: PLC0415  as above

    write(result, path)
    return [path.resolve(), *(write_figures(result, figures) if figures is not None else ())]
