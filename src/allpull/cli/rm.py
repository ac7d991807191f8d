"""``allpull rm``: remove runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from allpull.cli.options import Runs
from allpull.cli.say import note
from allpull.errors import BadInput
from allpull.units import counted

EXAMPLE = "allpull rm runs/20260312T101500Z_digits_n4_ab12cd34"


def rm(
    runs: Runs,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also runs that may not have ended, such as of a job that was killed on another machine."
        ),
    ] = False,
) -> None:
    """Remove runs with all their files."""
    from allpull.api.listing import remove  # noqa: PLC0415  polars is not needed for --help
    from allpull.api.places import run_directories  # noqa: PLC0415

    chosen = run_directories(runs)
    for directory in chosen:
        note(str(directory))
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput("rm asks before it removes, and nobody can answer here", hint="--yes")
        typer.confirm(f"Remove {counted(len(chosen), 'run')}?", abort=True, err=True)
    note(f"{counted(len(remove(chosen, unended=force)), 'run')} removed")
