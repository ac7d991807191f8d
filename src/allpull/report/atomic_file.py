"""Write a file completely or not at all, or raise an error that says why."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from allpull.errors import BadInput
from allpull.report.printable import printable


def place(path: Path, content: bytes) -> Path:
    """Write ``content`` to ``path`` atomically, like ``place_all``."""
    return place_all(path, [content])


def place_all(path: Path, parts: Iterable[bytes]) -> Path:
    """Write ``parts`` next to ``path`` and rename the result, so that no reader sees half a file; returns ``path``.

    Raises:
        BadInput: it cannot be written; an existing file at ``path`` is unchanged.
    """
    partial = path.with_name(f".{path.name[:100]}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.writelines(parts)
        partial.replace(path)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        with contextlib.suppress(OSError, ValueError):
            partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"cannot write {printable(str(path))}: {reason}", hint="choose another place, or make room there"
        ) from error
    return path
