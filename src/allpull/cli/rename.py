"""``allpull rename``: give a run a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli import completion
from allpull.cli.say import note

EXAMPLE = "allpull rename latest baseline"


def rename(
    run: Annotated[
        Path,
        typer.Argument(help="Run directory, or what a run is called.", metavar="RUN", autocompletion=completion.runs),
    ],
    name: Annotated[str, typer.Argument(help="Its new name.", metavar="NAME")],
) -> None:
    """Give a run a name. Its directory and id stay as they are."""
    from allpull.api.listing import rename as give_name  # noqa: PLC0415  polars is not needed for --help

    note(f"{give_name(run, name).name} is called {name}")
