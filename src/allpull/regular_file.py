"""Open regular files and nothing else: a pipe that stands in the place of a file never answers, a device never ends."""

from __future__ import annotations

import errno
import os
import stat


def regular(path: str | os.PathLike[str] | bytes, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file ``path``; as ``opener`` of ``open`` it refuses everything else.

    Raises:
        OSError: it cannot be opened, or is a pipe, a device, a socket or a folder.
    """
    # O_NONBLOCK: opening a pipe without a writer must not hang
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file", path)
    return descriptor
