"""``allpull env``: the lines to paste into a batch script that cannot be wrapped, and what closes its run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer, note
from allpull.cli.train import Out, Sets


def env(  # noqa: PLR0917  one parameter an option, called by typer alone
    out: Out = Path("runs"),
    shell: Annotated[str, typer.Option("--shell", help="Whose lines to print: sh (bash, zsh), csh or fish.")] = "sh",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run. Not given: that of the batch job.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="every=N[,steps=N][,first=N]", help="As for allpull run.")
    ] = None,
    steps: Annotated[str | None, typer.Option("--steps", metavar="FIRST:LAST", help="As for allpull run.")] = None,
    sets: Sets = None,
    finish: Annotated[
        Path | None,
        typer.Option(
            "--finish",
            metavar="RUN",
            help="Close the run directory that such lines opened, or of a Slurm job whose launcher is gone.",
        ),
    ] = None,
    code: Annotated[int, typer.Option("--code", help="With --finish: the exit code of the script.")] = 0,
) -> None:
    """Open a run directory and print the lines that have a script observed: eval "$(allpull env)"."""
    from allpull.cli import observing  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.launch.command import env_script  # noqa: PLC0415
    from allpull.launch.slurm import close_run  # noqa: PLC0415

    if finish is not None and close_run.of_slurm(finish):
        record = close_run.close(finish)
        note(f"{finish}: {record.status}" + (f", {record.exit.describe()}" if record.exit and record.exit.code else ""))
        return
    if finish is not None:
        record = env_script.close_run(finish, code)
        for sentence in env_script.closing_messages(record, finish):
            note(f"allpull: {sentence}")
        return
    options = (*(sets or ()), *observing.trace_options(trace), *observing.step_options(steps))
    lines, directory = observing.open_script(options, name=name, shell=shell, out=out)
    note(f"run directory: {directory}")
    answer(lines)
