"""The verdicts on this machine as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable
from allpull.schema.probed import Check

SIGNS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "bad": ("bad", "red"), "unknown": ("?", "dim")}
"""State of a check → its sign and colour."""


def verdicts(checks: Sequence[Check]) -> RenderableType:
    """One line per check with its advice, and how many would spoil a measurement."""
    table = Table.grid(padding=(0, 2))
    for check in checks:
        sign, colour = SIGNS[check.state]
        finding = Text(printable(check.found))
        if check.advice:
            finding.append(f"\n→ {printable(check.advice)}", style="italic")
        table.add_row(Text(sign, style=colour), Text(check.name), finding)
    troubles = sum(check.state in ("warn", "bad") for check in checks)
    end = f"{troubles} of {len(checks)} would spoil a measurement." if troubles else "Fit to measure on."
    return Group(table, Text(end))
