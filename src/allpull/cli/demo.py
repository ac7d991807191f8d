"""``allpull demo``: the whole chain on real data, on one rank and on two."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import Out, Sets, exit_like, has_desktop, own_command
from allpull.cli.say import answer, note, show_result
from allpull.errors import BadInput

EXAMPLE = "allpull demo --ranks 1,2,4"


def demo(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N…", help="Numbers of ranks.")] = "1,2",
    recipe: Annotated[
        str, typer.Option("--recipe", help="digits (embedded), or fashion-mnist (larger; see the README).")
    ] = "digits",
    sets: Sets = None,
    out: Out = Path("runs"),
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
) -> None:
    """Train on 1 and on 2 ranks, compare, and write a report.

    This takes about a minute.
    """
    from allpull.api.reporting import with_explanation, write_report  # noqa: PLC0415
    from allpull.api.runs import open_runs  # noqa: PLC0415  pydantic and polars are not needed for --help
    from allpull.cli.progress import follow  # noqa: PLC0415
    from allpull.jobs import training  # noqa: PLC0415
    from allpull.launch.execute import execute  # noqa: PLC0415
    from allpull.launch.launcher import choose  # noqa: PLC0415
    from allpull.report.terminal.show import page  # noqa: PLC0415

    counts = parse_counts(ranks)
    request = training.TrainingRequest(recipe=recipe, sets=("launch.launcher=local", *(sets or ())))
    spec = training.resolve(request, notify=note)
    directories = []
    for count in counts:
        job = training.training_job(replace(spec, launch=replace(spec.launch, ranks=count)), out, own_command())
        with follow(job.directory, job.spec) as look:
            record = execute(job, choose(spec.launch.launcher), look, note)
        note(f"run directory: {job.directory}")
        exit_like(record)
        directories.append(job.directory)
    result = with_explanation([run.aligned for run in open_runs(directories)])
    show_result(page(result))
    written, *_ = write_report(result, out / "report.html")
    answer(f"report: {written}")
    if open_page and sys.stdout.isatty() and has_desktop():
        webbrowser.open(written.as_uri())


def parse_counts(text: str) -> list[int]:
    """``"1,2"`` as numbers of ranks.

    Raises:
        BadInput: it is not a list of different numbers from 1 on.

    >>> parse_counts("1,2,4")
    [1, 2, 4]
    """
    parts = [part.strip() for part in text.split(",")]
    counts = [int(part) for part in parts if part.isascii() and part.isdigit() and 1 <= int(part) <= 65536]
    if len(counts) != len(parts) or len(set(counts)) != len(counts):
        raise BadInput(f"'{text}' is not a list of rank counts", hint="write it as --ranks 1,2")
    return counts
