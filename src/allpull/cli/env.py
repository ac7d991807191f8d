"""``allpull env``: the lines to paste into a batch script that cannot be wrapped, and the end of its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli import completion
from allpull.cli.options import EnvSets, Out, RecordedSteps, Trace, newest_run, own_command, step_options, trace_options
from allpull.cli.say import answer, note

EXAMPLE = 'eval "$(allpull env --out runs)"'


def env(  # noqa: PLR0917  one parameter an option, called by typer alone
    out: Out = Path("runs"),
    shell: Annotated[str, typer.Option("--shell", help="Shell of the script: sh (bash, zsh), csh or fish.")] = "sh",
    name: Annotated[str | None, typer.Option("--name", help="Name of the run. [default: the batch job's]")] = None,
    trace: Trace = None,
    steps: RecordedSteps = None,
    sets: EnvSets = None,
    finish: Annotated[
        Path | None,
        typer.Option(
            "--finish",
            metavar="RUN",
            help="Close a run that these lines opened, or the run of a Slurm job whose launcher is gone.",
            autocompletion=completion.runs,
        ),
    ] = None,
    code: Annotated[int, typer.Option("--code", help="With --finish: the exit code of the script.")] = 0,
) -> None:
    """Print lines that make a batch script record a run.

    They open a run directory and set the variables with which the programs of the script record into it.
    """
    from allpull.jobs.command import CommandRequest, open_script  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.launch.command import env_script  # noqa: PLC0415
    from allpull.launch.slurm import close_run  # noqa: PLC0415

    if finish is not None and not finish.exists():
        finish = newest_run(finish)
    if finish is not None and close_run.of_slurm(finish):
        record = close_run.close(finish)
        note(f"{finish}: {record.status}" + (f", {record.exit.describe()}" if record.exit and record.exit.code else ""))
        return
    if finish is not None:
        record = env_script.close_run(finish, code, interrupted=env_script.interrupted_command(os.environ))
        for sentence in env_script.closing_messages(record, finish):
            note(f"allpull: {sentence}")
        return
    options = (*(sets or ()), *trace_options(trace), *step_options(steps))
    lines, directory = open_script(CommandRequest(command=(), name=name, sets=options), shell, out, own_command())
    note(f"run directory: {directory}")
    answer(lines)
