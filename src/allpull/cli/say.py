"""How the command line speaks: notes and errors to stderr, results to stdout, nothing hostile to either."""

from __future__ import annotations

import sys

from allpull.errors import AllpullError
from allpull.report.plain import printable


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
