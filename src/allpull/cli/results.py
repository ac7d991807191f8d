"""From run directories to what the verbs print: the one path of data that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import detail
from allpull.analyse.scaling import in_order, scaling_table
from allpull.cli.say import answer
from allpull.explain.detail import detail as drawn
from allpull.explain.explanation import explain
from allpull.explain.scaling import sentences
from allpull.report.terminal import table
from allpull.report.terminal.show import seen
from allpull.rundir.read.run import find_runs, read_run
from allpull.schema.base import tag
from allpull.schema.reported import ScalingReport


def read_report(places: Sequence[Path], *, skip_damaged: bool = False) -> ScalingReport:
    """Read and analyse the runs at ``places``; a folder of runs stands for all of them.

    Raises:
        RunDirError: one of them cannot be read.
    """
    return reported(read_runs(places, skip_damaged=skip_damaged))


def read_runs(places: Sequence[Path], *, skip_damaged: bool = False) -> list[AlignedRun]:
    """The runs at ``places``, in the order of their ranks; a folder of runs stands for all of them.

    Raises:
        RunDirError: one of them cannot be read.
    """
    directories = list(dict.fromkeys(found for place in places for found in find_runs(place)))
    return in_order([AlignedRun(read_run(directory, skip_damaged=skip_damaged)) for directory in directories])


def reported(runs: Sequence[AlignedRun]) -> ScalingReport:
    """What the records of ``runs`` say."""
    show = scaling_table(runs)
    details = [detail(run, metrics) for run, metrics in zip(runs, show.runs, strict=True)]
    return ScalingReport(schema=tag("report"), show=show, words=sentences(show, details), details=details)


def with_explanation(report: ScalingReport, runs: Sequence[AlignedRun]) -> ScalingReport:
    """``report`` with the explanation of the one of ``runs`` with most ranks, if it has any to explain."""
    largest = max(runs, key=lambda run: run.data.record.ranks)
    made = explain(largest, [run for run in runs if run.data.record.ranks < largest.data.record.ranks])
    if made.window is None:
        return report
    return report.model_copy(update={"explained": [drawn(made.result, made.window, made.blame)]})


def print_report(report: ScalingReport) -> None:
    """The table, what it means, and what is missing, on stdout; of a single run also what was seen of it."""
    console = Console(highlight=False)
    with console.capture() as shown:  # where nobody reads on, rich would end us with code 1
        console.print(table.table(report.show))
        if len(report.show.runs) == 1:
            console.print(table.phases(report.show))
            console.print(seen(report.show.runs[0]))
        console.print(table.words(report.words))
        missing = [f"{run.run}: {gap}" for run in report.show.runs for gap in run.gaps]
        if report.show.notes or missing:
            console.print("Note:")
            console.print(table.words([*report.show.notes, *missing]))
    answer(shown.get().removesuffix("\n"))
