"""How long the thread that trains could have run and had no CPU, asked at the end of each step.

Linux counts it for every thread (``schedstat`` of proc(5), second field, ns). One file stays open and is read again,
for a microsecond. What all threads of the rank wait for together, ``family`` reads from outside.
"""

from __future__ import annotations

import os
import threading
from typing import Optional, Tuple

LONGEST = 96  # bytes: three numbers of 64 bits


class RunQueue:
    """The waiting of whichever thread asks; a thread that was not the last one to ask begins anew."""

    def __init__(self) -> None:
        self._thread: Optional[int] = None
        self._file: Optional[int] = None
        self._which: Optional[Tuple[int, int]] = None
        self._before_ns = 0

    def since(self) -> Optional[int]:
        """How long this thread waited for a CPU since it last asked, ns; None: not known."""
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
        """Close the file, unless the program did so and has opened another in its place."""
        file, self._file = self._file, None
        try:
            if file is not None and _which(file) == self._which:
                os.close(file)
        except OSError:
            return  # the program has closed it

    def _begin(self) -> None:
        self.close()
        self._thread = threading.get_ident()
        try:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
            self._which = _which(self._file)
            ran_ns, self._before_ns = map(int, os.pread(self._file, LONGEST, 0).split()[:2])
            if ran_ns == 0 and not _counts():
                self.close()
        except (OSError, ValueError):
            self.close()


def _counts() -> bool:
    """Whether the kernel counts at all. Of a thread that has just begun it says 0, too; the first one has long run."""
    with open("/proc/self/schedstat", "rb") as file:
        return not file.read(LONGEST).startswith(b"0 ")


def _which(file: int) -> Tuple[int, int]:
    """What tells an open file from all others."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino
