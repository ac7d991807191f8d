"""``allpull import``: a run directory from traces that other tools recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import note

EXAMPLE = "allpull import traces/ --name resnet50"

SHOWN_GAPS = 12  # the others are in the run directory

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Traces of torch.profiler (.json, .json.gz) or flight-recorder dumps of all ranks, or folders of them.",
        metavar="FILES…",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the run directory.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run. [default: the folder's]")]


def import_(files: Files, out: Out = Path("runs"), name: Name = None) -> None:
    """Make a run directory from traces of other tools."""
    from allpull.importers.assemble import import_traces  # noqa: PLC0415  numpy is not needed for --help
    from allpull.rundir.safe_open import shown_path  # noqa: PLC0415

    done = import_traces(files, out=out, name=name, notify=note)
    note(done.summary)
    for gap in done.gaps[:SHOWN_GAPS]:
        note(f"note: {gap}" if gap != done.unmatched else f"warning: {gap}")
    if len(done.gaps) > SHOWN_GAPS:
        note(f"note: and {len(done.gaps) - SHOWN_GAPS:,} more, which allpull show prints")
    note(f"run directory: {shown_path(done.directory)}")
