"""``allpull doctor``: what on this machine would spoil a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer

if TYPE_CHECKING:
    from allpull.probe.doctor import Check

EXAMPLE = "allpull doctor --out /scratch/runs"

TORCH_TIMEOUT_S = 60.0  # importing torch from a cold network disk takes this long, and no longer
SIGNS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "bad": ("bad", "red"), "unknown": ("?", "dim")}


def doctor(
    place: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for run directories.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check what on this machine would spoil a measurement."""
    import json  # noqa: PLC0415  none of these is needed for --help

    from allpull.observe.host import describe_host  # noqa: PLC0415
    from allpull.probe.doctor import as_json as checks_as_json  # noqa: PLC0415
    from allpull.probe.doctor import examine  # noqa: PLC0415
    from allpull.probe.machine_facts import read_facts  # noqa: PLC0415
    from allpull.schema.host import HostRecord  # noqa: PLC0415

    folder = place if place.is_dir() else Path()
    host = HostRecord.model_validate(describe_host(str(folder)))
    checks = examine(read_facts(host, folder, torch_timeout_s=TORCH_TIMEOUT_S))
    if as_json:
        answer(json.dumps(checks_as_json(checks), indent=1))
    else:
        print_checks(checks)


def print_checks(checks: list[Check]) -> None:
    """One line per check with its advice, and how many would spoil a measurement."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from allpull.report.printable import printable  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    for check in checks:
        sign, colour = SIGNS[check.state]
        finding = Text(printable(check.found))
        if check.advice:
            finding.append(f"\n→ {printable(check.advice)}", style="italic")
        table.add_row(Text(sign, style=colour), Text(check.name), finding)
    console = Console(highlight=False)
    console.print(table)
    troubles = sum(check.state in ("warn", "bad") for check in checks)
    console.print(f"{troubles} of {len(checks)} would spoil a measurement." if troubles else "Fit to measure on.")
