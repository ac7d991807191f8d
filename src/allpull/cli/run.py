"""``allpull run``: any command, observed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer
from allpull.cli.train import Out, Prepare, Sets, check_asked, say_prepared

SETTINGS = {"allow_interspersed_args": False}
"""Of the command line: what follows the first word of COMMAND is COMMAND's, options too."""


def run(  # noqa: PLR0917  one parameter an option, called by typer alone
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND…", help="What to run, after `--`, with its arguments.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            help="Start COMMAND (script.py, python script.py or -m module) as this many ranks. "
            "Not given: run it as it is.",
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option("--launcher", metavar="NAME[:ARGUMENT]", help="With -n: where ranks run, as for allpull train."),
    ] = None,
    out: Out = Path("runs"),
    name: Annotated[str | None, typer.Option("--name", help="Name of the run. Not given: that of the script.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace", metavar="every=N[,steps=N][,first=N]", help="Let torch's profiler look closer now and then."
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="FIRST:LAST", help="Record steps FIRST to LAST - 1 only.")
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, to be read, and start and write nothing.")
    ] = False,
    prepare: Prepare = False,
) -> None:
    """Run any command, observed: torchrun, srun, a shell script, one Python process. Its exit code is passed on."""
    from allpull.cli import observing  # noqa: PLC0415  pydantic is not needed for --help

    check_asked(dry_run=dry_run, prepare=prepare)
    asked = observing.Asked(
        words=tuple(command or ()),
        ranks=ranks,
        launcher=launcher,
        name=name,
        sets=(*(sets or ()), *observing.trace_options(trace), *observing.step_options(steps)),
    )
    ready = observing.resolve(asked)
    if dry_run:
        answer(observing.plan(ready, out))
        return
    if prepare:
        say_prepared(observing.prepare_script(ready, out))
        return
    raise typer.Exit(observing.observe(ready, out))
