"""How long the training thread was ready to run and had no CPU, read at the end of each step.

Linux counts it for every thread (``schedstat`` of proc(5), second field, ns). One file stays open and is read again,
for a microsecond. ``sidecar.process_tree`` reads the sum over all threads of the rank from outside.
"""

from __future__ import annotations

import os
import threading
from typing import Optional, Tuple

LONGEST = 96  # bytes: three numbers of 64 bits


class RunQueue:
    """The waiting time of the calling thread; it starts from zero when another thread calls."""

    def __init__(self) -> None:
        self._thread: Optional[int] = None
        self._file: Optional[int] = None
        self._file_id: Optional[Tuple[int, int]] = None
        self._before_ns = 0

    def since(self) -> Optional[int]:
        """How long this thread has waited for a CPU since its last call, ns; None: unknown."""
        if threading.get_ident() != self._thread:
            self._begin()
            return None
        if self._file is None:
            return None
        try:
            now_ns = int(os.pread(self._file, LONGEST, 0).split()[1])
        except (OSError, ValueError, IndexError):  # the program has closed files that it did not open
            self._file = None
            return None
        waited_ns = now_ns - self._before_ns
        self._before_ns = now_ns
        return waited_ns if waited_ns >= 0 else None

    def close(self) -> None:
        """Close the file, unless the program closed it and reused its descriptor."""
        file, self._file = self._file, None
        try:
            if file is not None and _file_id(file) == self._file_id:
                os.close(file)
        except OSError:
            return  # the program has closed it

    def _begin(self) -> None:
        self.close()
        self._thread = threading.get_ident()
        try:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
            self._file_id = _file_id(self._file)
            ran_ns, self._before_ns = map(int, os.pread(self._file, LONGEST, 0).split()[:2])
            if ran_ns == 0 and not _counts():
                self.close()
        except (OSError, ValueError):
            self.close()


def _counts() -> bool:
    """Whether the kernel counts at all: a new thread also reads 0, but the main thread has run."""
    with open("/proc/self/schedstat", "rb") as file:
        return not file.read(LONGEST).startswith(b"0 ")


def _file_id(file: int) -> Tuple[int, int]:
    """Device and inode of an open file."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino
