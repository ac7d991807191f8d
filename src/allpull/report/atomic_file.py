"""Put a finished file in its place, whole or not at all, or say why not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from allpull.errors import BadInput
from allpull.report.printable import printable


def place(path: Path, content: bytes) -> Path:
    """Put ``content`` at ``path`` whole, as ``place_all``."""
    return place_all(path, [content])


def place_all(path: Path, parts: Iterable[bytes]) -> Path:
    """Write ``parts`` beside ``path`` and rename them there, so that nobody ever reads half of it; returns ``path``.

    Raises:
        BadInput: it cannot be written; what stood at ``path`` before stands there still.
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
