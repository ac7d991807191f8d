"""Make the folder that a verb writes into, or say why that is not possible; hold it while others may exchange it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allpull.errors import BadInput

CHOOSE_OUT = "choose another folder (--out)"
HELD = Path("/proc/self/fd")
"""Below it the paths of ``held_folder`` lead to folders as they were opened."""
_IN_THE_WAY = {errno.EEXIST, errno.ENOTDIR}


def make_folder(path: Path, *, hint: str = CHOOSE_OUT, mode: int = 0o777) -> None:
    """Make ``path``, with the folders above it; ``mode`` is that of new folders.

    Raises:
        BadInput: something else is in its place, or we may not write there.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to write there")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise BadInput(f"cannot write into the folder {shown}: {_reason(error, path)}", hint=hint) from error


def existing_folder(path: Path) -> Path:
    """``path``, or the lowest folder above it that exists: where ``make_folder`` would make it.

    Raises:
        BadInput: something else is in its place.
    """
    lowest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not lowest.is_dir():
        make_folder(path)  # which says why it cannot
    return lowest


@contextmanager
def held_folder(path: Path) -> Iterator[Path]:
    """A path that leads to the folder ``path`` as it is now, whatever takes its place meanwhile (on Linux).

    Raises:
        OSError: ``path`` is a link or no folder; of what the block raises, ``filename`` names a file below ``path``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    here = HELD / str(descriptor)
    try:
        yield here if here.exists() else path
    except OSError as error:
        if error.filename is not None:  # that of polars has a text alone, which would be lost
            error.filename, error.filename2 = (_below(path, here, name) for name in (error.filename, error.filename2))
        raise
    finally:
        os.close(descriptor)


def check_fresh(folder: Path) -> None:
    """Check that ``folder``, which we have just made and hold, is that one.

    Raises:
        BadInput: it is somebody else's, or not empty.
    """
    status = folder.stat()
    is_strange = status.st_uid != os.geteuid() and bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if is_strange or any(folder.iterdir()):
        raise BadInput(
            "another directory has taken the place of the one that was made for this run",
            hint="choose a folder for runs (--out) to which nobody else may write",
        )


def _below(path: Path, here: Path, name: object) -> object:
    return str(path) + name.removeprefix(str(here)) if isinstance(name, str) and name.startswith(str(here)) else name


def _reason(error: OSError | ValueError, path: Path) -> str:
    if isinstance(error, OSError) and error.errno in _IN_THE_WAY:
        for place in (*reversed(path.parents), path):
            if os.path.lexists(place) and not place.is_dir():
                what = "a link that leads to no folder" if place.is_symlink() else "not a folder"
                return f"{place} is {what}" if place != path else f"it is {what}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
