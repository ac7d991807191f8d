"""Make the folder that a verb writes into, or say why that is not possible."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from allpull.errors import BadInput

CHOOSE_OUT = "choose another folder (--out)"
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


def _reason(error: OSError | ValueError, path: Path) -> str:
    if isinstance(error, OSError) and error.errno in _IN_THE_WAY:
        for place in (*reversed(path.parents), path):
            if os.path.lexists(place) and not place.is_dir():
                what = "a link that leads to no folder" if place.is_symlink() else "not a folder"
                return f"{place} is {what}" if place != path else f"it is {what}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
