"""Print for the user: notes and errors to stderr, results to stdout, control characters to neither."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from allpull.errors import AllpullError
from allpull.report.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def note(text: str) -> None:
    """A line for the user, on stderr."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def complain(error: AllpullError) -> None:
    """An error, on stderr: what and where, then what to do."""
    lines = str(error.message).splitlines() or [""]
    note(f"allpull: {lines[0]}")
    for line in lines[1:]:
        note(line)
    if error.hint:
        note(f"hint: {error.hint}")


def answer(text: str) -> None:
    """A result, on stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show_result(*parts: RenderableType) -> None:
    """Print tables and paragraphs on stdout, laid out for its width."""
    from rich.console import Console  # noqa: PLC0415  not needed for --help

    console = Console(highlight=False)
    with console.capture() as printed:  # if the reader of the pipe is gone, rich would end us with code 1
        for part in parts:
            console.print(part)
    answer(printed.get().removesuffix("\n"))
