"""What was worked out of a run and kept beside it. These files are caches: whoever misses one makes it again."""

from __future__ import annotations

from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import bounded
from allpull.schema.explained import ExplainResult

EXPLAINED = "derived/explain.json"
MAX_BYTES = 64 << 20  # seconds of every phase of 100,000 ranks


def read_explained(directory: Path, run: str) -> ExplainResult | None:
    """What `allpull explain` kept of the run called ``run``; None where there is nothing, or that of another run.

    Raises:
        RunDirError: there is something, and it cannot be read.
    """
    root = bounded.checked_directory(directory)
    folder, _, name = EXPLAINED.partition("/")
    if name not in bounded.file_names(root, folder, name):
        return None
    blob = bounded.read_whole(root, EXPLAINED, MAX_BYTES)
    try:
        found = bounded.document(ExplainResult, "explain", blob, f"{bounded.shown_path(root)}/{EXPLAINED}")
    except RunDirError as error:
        raise RunDirError(error.message, hint=f"allpull explain {bounded.shown_path(root)} makes it again") from error
    return found if found.run == run else None
