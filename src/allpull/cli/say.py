"""Print for the user: notes and errors to stderr, results to stdout, control characters to neither."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from allpull.cli.encoding import in_encoding, json_in_encoding
from allpull.errors import AllpullError
from allpull.patient_stream import PatientStream
from allpull.report.printable import inert_json, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from allpull.schema.base import Record

UNWRAPPED = 10_000  # columns: more than a line of ours has


class _Notes:
    """What we say on stderr, as far as somebody reads it: what runs meanwhile, such as a job, waits for no reader."""

    def __init__(self) -> None:
        self._shown_on: TextIO | None = None
        self._stream: PatientStream | None = None

    def stream(self) -> PatientStream | None:
        """That of stderr as it is now; None: it is no file of ours, as in a test or above a bar of progress."""
        if sys.stderr is not self._shown_on:
            self._shown_on, self._stream = sys.stderr, None
            with suppress(OSError):
                self._stream = PatientStream(sys.stderr.fileno()) if isinstance(sys.stderr, TextIOWrapper) else None
        return self._stream


_NOTES = _Notes()


def note(text: str) -> None:
    """A line for the user, on stderr: at once, or as soon as its reader takes it. If it has none, it is dropped."""
    draw(f"{printable(text)}\n")


def draw(text: str) -> None:
    """``text`` on stderr, with what controls a terminal; as ``note``."""
    sys.stderr.flush()
    if (stream := _NOTES.stream()) is None:
        sys.stderr.write(text)
        return
    with suppress(OSError):
        stream.write(text.encode(sys.stderr.encoding, sys.stderr.errors or "strict"))


def is_behind() -> bool:
    """Whether stderr has not taken all that was said: what is only to be seen now, such as progress, is left out."""
    draw("")
    return (stream := _NOTES.stream()) is not None and stream.is_behind


def finish_notes() -> None:
    """Wait until all that was said has been taken."""
    if (stream := _NOTES.stream()) is not None:
        with suppress(OSError, KeyboardInterrupt):  # Ctrl-C: the user does not want to read it
            stream.finish()


def complain(error: AllpullError) -> None:
    """An error, on stderr: what and where, then what to do."""
    lines = str(error.message).splitlines() or [""]
    note(f"allpull: {lines[0]}")
    for line in lines[1:]:
        note(line)
    if error.hint:
        note(f"hint: {error.hint}")


def answer(text: str) -> None:
    """A result, on stdout.

    Raises:
        OSError: nobody reads it, or its disk is full.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        raise


def answer_json(record: Record) -> None:
    """A record on stdout as one JSON object, whose texts no terminal interprets."""
    document = inert_json(record.model_dump_json(by_alias=True, indent=1))
    answer(json_in_encoding(document, sys.stdout.encoding or "utf-8"))


def show_result(*parts: RenderableType) -> None:
    """Print tables and paragraphs on stdout: laid out for a terminal's width, and unwrapped into a pipe or a file.

    COLUMNS sets another width. No line ends in blanks, and where the locale lacks a character, ASCII replaces it.
    """
    from rich.console import Console  # noqa: PLC0415  not needed for --help

    is_terminal = sys.stdout.isatty()
    layout = StringIO()  # of our own: into a closed pipe, rich would end us with code 1; and it would draw other lines
    width = None if is_terminal or os.environ.get("COLUMNS", "").isdigit() else UNWRAPPED
    console = Console(file=layout, highlight=False, width=width, force_terminal=is_terminal or None)
    for part in parts:
        console.print(part)
    lines = (line.rstrip(" ") for line in layout.getvalue().removesuffix("\n").split("\n"))
    answer(in_encoding("\n".join(lines), sys.stdout.encoding or "utf-8"))
