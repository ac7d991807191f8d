"""``allpull show``: what one run did, or the scaling table of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer

Runs = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some.", metavar="RUN…")]
SkipDamaged = Annotated[bool, typer.Option("--skip-damaged", help="Leave damaged lines out, and say how many.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def show(runs: Runs, as_json: AsJson = False, skip_damaged: SkipDamaged = False) -> None:
    """Show throughput, phases and accuracy; several runs give a scaling table."""
    from allpull.cli.results import read_report  # noqa: PLC0415  polars is not needed for --help

    result = read_report(runs, skip_damaged=skip_damaged)
    if as_json:
        answer(result.show.model_dump_json(by_alias=True, indent=1))
        return
    from allpull.cli.results import print_report  # noqa: PLC0415

    print_report(result)
