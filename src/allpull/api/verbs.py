"""Explain and report runs, or the runs at a place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from allpull.analyse.programs import by_program
from allpull.analyse.scaling import in_order
from allpull.api.explanation import explain_run
from allpull.api.places import Place
from allpull.api.reporting import scaling_report, with_explanation, write_report
from allpull.api.results import Explanation, Scaling
from allpull.api.runs import Run, as_runs
from allpull.errors import BadInput


def scaling(runs: Run | Place | Iterable[Run | Place], *, skip_damaged: bool = False) -> Scaling:
    """The scaling table of several runs: throughput, speed-up and efficiency against the one with the fewest ranks.

    Args:
        runs: runs, run directories, or folders of them.
        skip_damaged: leave out lines of records that cannot be read.

    Raises:
        RunDirError: one of them cannot be read.
        BadInput: no run was given.
    """
    return Scaling.of(scaling_report([run.aligned for run in as_runs(runs, skip_damaged=skip_damaged)]))


def explain(
    runs: Run | Place | Iterable[Run | Place],
    reference: Run | Place | Iterable[Run | Place] | None = None,
    *,
    skip_damaged: bool = False,
) -> Explanation:
    """Explain the run with the most ranks: its efficiency tree, its findings, and what each remedy gains.

    The answer is kept in the run directory, as ``allpull explain`` keeps it.

    Args:
        runs: runs, run directories, or folders of them; the others of the same program are references.
        reference: more runs of the same training on other numbers of ranks; efficiency is measured against the one
            with the fewest ranks.
        skip_damaged: leave out lines of records that cannot be read.

    Raises:
        RunDirError: one of them cannot be read.
        BadInput: no run was given, or a reference is of another program.
    """
    given = [run.aligned for run in as_runs(runs, skip_damaged=skip_damaged)]
    if not given:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    of_program = by_program(in_order(given))[0]
    run = of_program[-1]
    more = [] if reference is None else as_runs(reference, skip_damaged=skip_damaged)
    return explain_run(run, [*of_program[:-1], *(one.aligned for one in more)])


def report(
    runs: Run | Place | Iterable[Run | Place],
    path: Place,
    *,
    figures: Place | None = None,
    skip_damaged: bool = False,
) -> Path:
    """Write one self-contained HTML report of one or several runs; returns the path of the page.

    Args:
        runs: runs, run directories, or folders of them.
        path: file to write; it is replaced once the page is complete.
        figures: folder for each chart as PNG, SVG and PDF; None: no such files.
        skip_damaged: leave out lines of records that cannot be read.

    Raises:
        RunDirError: one of the runs cannot be read.
        BadInput: no run was given, or ``path`` or ``figures`` cannot be written.
    """
    result = with_explanation([run.aligned for run in as_runs(runs, skip_damaged=skip_damaged)])
    return write_report(result, Path(path), None if figures is None else Path(figures))[0]
