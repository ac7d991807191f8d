"""Split a file of records into its header and its whole lines, within the budget that the header states.

A rank that was killed leaves a truncated last line; it is dropped and counted, never an error. Any other unreadable
line is damage.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from pydantic import ValidationError

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.schema.base import Record
from allpull.units import show_bytes

MAX_FILE_BYTES = 1 << 32  # of one file of records, whatever its header allows
MAX_HEADER_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 22  # a writer's lines have kilobytes; parsing one takes several times its size
BUDGET_SLACK = 2  # a writer stops at its budget; a file of more than twice that was not written by it

Header = TypeVar("Header", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Generic[Header]):
    """A header, and the bytes of the whole lines that follow it, each with its newline.

    ``where`` names the file in messages; ``cut_off``: a truncated last line was dropped.
    """

    where: str
    header: Header
    body: bytes
    cut_off: bool

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """Each line with its number in the file, the header being line 1."""
        return enumerate(io.BytesIO(self.body), start=2)


def read_lines(root: Path, relative: str, kind: type[Header], name: str) -> Lines[Header] | None:
    """Read ``relative`` of the run directory ``root``; its first line is a ``kind`` with a schema tag of ``name``.

    Returns None where the rank was killed before its header was written whole.

    Raises:
        RunDirError: the file cannot be opened, its header is damaged or newer, or it grew past its budget.
    """
    where = f"{safe_open.shown_path(root)}/{relative}"
    with safe_open.opened(root, relative) as (file, size):
        first = file.readline(MAX_HEADER_BYTES + 1)
        if len(first) > MAX_HEADER_BYTES:
            raise RunDirError(f"{where}: its first line is too long for a header", hint="is this an allpull file?")
        if not first.endswith(b"\n"):
            return None
        header = safe_open.document(kind, name, first, f"{where}, line 1")
        limit = _limit_bytes(header)
        if size > limit:
            raise RunDirError(
                f"{where}: {show_bytes(size)}, more than the {show_bytes(limit)} that can be right: "
                "the record file grew past its budget",
                hint="something else wrote into it: copy it again from where it was made, or move it away",
            )
        if size > MAX_LINE_BYTES:
            _check_lines(file, where)
        body = file.read(max(0, size - len(first)))  # not to ``limit``: Python sets that much aside first
    whole = body.rfind(b"\n") + 1
    if whole < len(body) and _is_object(body[whole:]):
        return Lines(where=where, header=header, body=body + b"\n", cut_off=False)
    return Lines(where=where, header=header, body=body[:whole], cut_off=whole < len(body))


def _check_lines(file: BinaryIO, where: str) -> None:
    """Check in a fixed amount of memory that no line goes on for twice ``MAX_LINE_BYTES``; ``file`` stays where it is.

    Raises:
        RunDirError: one does.
    """
    begin, buffer = file.tell(), bytearray(MAX_LINE_BYTES)
    while file.readinto(buffer) == MAX_LINE_BYTES:  # type: ignore[attr-defined]  # a BufferedReader has it
        if buffer.rfind(b"\n") < 0:
            raise RunDirError(
                f"{where}: a line of more than {show_bytes(MAX_LINE_BYTES)}, which allpull writes nowhere",
                hint="the file is damaged: copy it again from where it was made, or move it away",
            )
    file.seek(begin)


def value_of(line: bytes) -> dict[str, Any]:
    """The JSON object on one line.

    Raises:
        ValueError: there is none.
    """
    if not line.strip():
        raise ValueError("an empty line")
    try:
        value = safe_open.parsed(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {str(error).replace(' at line 1 column ', ', column ')}") from error
    if isinstance(value, dict):
        return value
    raise ValueError("not a JSON object")


def damage(where: str, line: int, fault: object) -> RunDirError:
    """The error for one damaged line."""
    return RunDirError(
        f"{where}, line {line}: {fault}",
        hint="copy the file again from where it was made, or leave such lines out: --skip-damaged, skip_damaged=True",
    )


def one_damaged(lines: Lines[Any], number: int, fault: ValueError, *, skip_damaged: bool) -> int:
    """1, the number of damaged lines here; raises the error for the line unless damaged lines are skipped."""
    if not skip_damaged:
        shown = safe_open.faults(fault) if isinstance(fault, ValidationError) else fault
        raise damage(lines.where, number, shown) from fault
    return 1


def _limit_bytes(header: Record) -> int:
    budget: int = getattr(header, "budget", MAX_FILE_BYTES)
    return max(0, min(MAX_FILE_BYTES, BUDGET_SLACK * budget))


def _is_object(tail: bytes) -> bool:
    try:
        value_of(tail)
    except ValueError:
        return False
    return True
