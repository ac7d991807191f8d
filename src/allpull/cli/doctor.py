"""``allpull doctor``: what here would spoil a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer
from allpull.cli.show import AsJson


def doctor(
    place: Annotated[Path, typer.Option("--out", help="Folder in which run directories would be made.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Say what on this machine would spoil a measurement, and what to do about it."""
    import json  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415  not needed for --help

    from allpull.probe.doctor import as_json as checks_as_json  # noqa: PLC0415
    from allpull.probe.doctor import examine, read_facts  # noqa: PLC0415
    from allpull.report.terminal import checks as checks_table  # noqa: PLC0415

    checks = examine(read_facts(place))
    if as_json:
        answer(json.dumps(checks_as_json(checks), indent=1))
    else:
        Console(highlight=False).print(checks_table(checks))
