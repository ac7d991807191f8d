"""Open regular files only, and read exactly the requested bytes or raise."""

from __future__ import annotations

import os
from pathlib import Path

from allpull.data.pack_format import COPY_AGAIN, PackError
from allpull.regular_file import regular


def open_regular(path: Path) -> int:
    """A descriptor of the regular file ``path``; links, pipes and devices are refused.

    Raises:
        PackError: it is missing, not readable, or not a regular file.
    """
    try:
        return regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        hint = "a pack holds regular files; link the folder instead" if path.is_symlink() else "is the pack complete?"
        raise PackError(f"{path}: {error.strerror}", hint=hint) from error


def exactly(descriptor: int, count: int, offset: int, path: Path) -> bytes:
    """``count`` bytes from ``offset`` on; one system call reads at most 2 GiB, so large reads take several."""
    parts: list[bytes] = []
    while count:
        try:
            part = os.pread(descriptor, count, offset)
        except OSError as error:
            raise PackError(f"{path}: {error.strerror}", hint="check the file system") from error
        if not part:
            raise PackError(f"{path}: truncated, {count} bytes are missing", hint=COPY_AGAIN)
        parts.append(part)
        count, offset = count - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def exactly_into(memory: memoryview, descriptor: int, offset: int, path: Path) -> memoryview:
    """``memory`` filled from ``offset`` on."""
    done = 0
    while done < len(memory):
        try:
            count = os.preadv(descriptor, [memory[done:]], offset + done)
        except OSError as error:
            raise PackError(f"{path}: {error.strerror}", hint="check the file system") from error
        if not count:
            raise PackError(f"{path}: truncated, {len(memory) - done} bytes are missing", hint=COPY_AGAIN)
        done += count
    return memory
