"""Read what a probe wrote into its run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from allpull.rundir import layout
from allpull.rundir.safe_open import checked_directory, document, read_whole
from allpull.schema.base import Record

MAX_BYTES = 256 << 20  # a clock probe of a thousand hosts

Answer = TypeVar("Answer", bound=Record)


def has_probe(directory: Path, name: str) -> bool:
    """Whether the probe called ``name`` wrote an answer there."""
    return (checked_directory(directory) / layout.probe_file(name)).is_file()


def read_probe(directory: Path, name: str, kind: type[Answer]) -> Answer:
    """The answer of the probe called ``name``.

    Raises:
        RunDirError: there is none, or it cannot be read.
    """
    root = checked_directory(directory)
    relative = layout.probe_file(name)
    return document(kind, name, read_whole(root, relative, MAX_BYTES), str(root / relative))
