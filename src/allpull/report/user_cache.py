"""Keep what is the same for all runs in the user's cache directory: safe to delete, and private."""

from __future__ import annotations

import os
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.rundir.write import private_folder, replaced_file


def directory() -> Path | None:
    """The folder of allpull in the user's cache directory (XDG base directories); None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "allpull"
    except RuntimeError:
        return None


def load(name: str, limit_bytes: int) -> bytes | None:
    """What was kept under ``name``; None where there is nothing, or another user could have written it."""
    folder = directory()
    try:
        if folder is None or _is_foreign(folder) or _is_foreign(folder / name):
            return None
        return safe_open.read_whole(folder.resolve(), name, limit_bytes)
    except (OSError, RunDirError):
        return None


def store(name: str, blob: bytes) -> None:
    """Keep ``blob`` under ``name``, where that is possible."""
    folder = directory()
    if folder is None:
        return
    try:
        private_folder(str(folder))
        if not _is_foreign(folder):
            with replaced_file(str(folder / name)) as file:
                file.write(blob)
    except OSError:
        return


def _is_foreign(path: Path) -> bool:
    """Raises OSError where there is nothing."""
    return path.is_symlink() or safe_open.others_can_write(path.lstat())
