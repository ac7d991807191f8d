"""``allpull run``: any command, observed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import (
    CommandSets,
    DryRun,
    Out,
    Prepare,
    RecordedSteps,
    Trace,
    check_exclusive,
    closing_lines,
    own_command,
    print_plan,
    print_prepared,
    step_options,
    trace_options,
)
from allpull.cli.say import note
from allpull.errors import BadInput

EXAMPLE = "allpull run -n 4 -- train.py --lr 0.1"

SETTINGS = {"allow_interspersed_args": False}
"""How click reads the command line: what follows the first word of COMMAND belongs to COMMAND, options too."""

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="COMMAND…", help="Command to run and its arguments, after `--`.", show_default=False),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--ranks",
        help="Start COMMAND (script.py, python script.py or -m module) as this many ranks. [default: run it unchanged]",
    ),
]
Launch = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME[:ARGUMENT]",
        help="With -n, where ranks run: local, ssh:HOSTS, slurm, mpi[:HOSTFILE], rehearse:CLUSTER.toml.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run. [default: the script's]")]


def run(  # noqa: PLR0917  one parameter an option, called by typer alone
    command: Command = None,
    ranks: Ranks = None,
    launcher: Launch = None,
    out: Out = Path("runs"),
    name: Name = None,
    trace: Trace = None,
    steps: RecordedSteps = None,
    sets: CommandSets = None,
    dry_run: DryRun = False,
    prepare: Prepare = False,
) -> None:
    """Run any command, observed.

    The command is torchrun, srun, a shell script or one Python process. Its exit code is passed on.
    """
    from allpull.jobs import command as observing  # noqa: PLC0415  pydantic is not needed for --help

    check_exclusive(dry_run=dry_run, prepare=prepare)
    if not command:
        raise BadInput("no command was given", hint="allpull run -- torchrun --nproc-per-node 4 train.py")
    request = observing.CommandRequest(
        command=tuple(command),
        ranks=ranks,
        launcher=launcher,
        name=name,
        sets=(*(sets or ()), *trace_options(trace), *step_options(steps)),
    )
    observed = observing.resolve(request, notify=note)
    if dry_run:
        print_plan(observing.command_plan(observed, out, own_command()))
        return
    if prepare:
        print_prepared(observing.command_script(observed, out, own_command()))
        return
    raise typer.Exit(observing.observe(observed, out, own_command(), notify=note, summary=closing_lines))
