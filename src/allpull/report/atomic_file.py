"""Write a file completely or not at all, or raise an error that says why."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from allpull.errors import BadInput
from allpull.report.printable import printable
from allpull.rundir.write import replaced_file


def place(path: Path, content: bytes) -> Path:
    """Write ``content`` to ``path`` atomically, like ``place_all``."""
    return place_all(path, [content])


def place_all(path: Path, parts: Iterable[bytes]) -> Path:
    """Write ``parts`` next to ``path`` and rename the result, so that no reader sees half a file; returns ``path``.

    Raises:
        BadInput: it cannot be written; an existing file at ``path`` is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(str(path)) as file:
            file.writelines(parts)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"cannot write {printable(str(path))}: {reason}", hint="choose another place, or make room there"
        ) from error
    return path
