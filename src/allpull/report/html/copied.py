"""The commands and edits of a remedy as lines to copy, each with where it goes."""

from __future__ import annotations

from collections.abc import Iterable

from allpull.report.html.block import Command
from allpull.schema.explained import Place, RemedyLine

PLACES: dict[Place, str] = {
    "shell": "In a shell",
    "starter": "In the command that starts the training",
    "environment": "Before the training starts",
    "program": "In the program",
}


def copied(lines: Iterable[RemedyLine]) -> list[Command]:
    """``lines`` with where each goes."""
    return [Command(label=PLACES[one.place], line=one.line) for one in lines]
