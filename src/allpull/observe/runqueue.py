"""How long the thread that trains could have run and had no CPU, asked at the end of each step.

Linux counts it for every thread (``schedstat`` of proc(5), second field, ns). One file stays open and is read again,
for a microsecond. What all threads of the rank wait for together, ``family`` reads from outside.
"""

from __future__ import annotations

import os
import threading
from typing import BinaryIO, Optional

LONGEST = 96  # bytes: three numbers of 64 bits


class RunQueue:
    """The waiting of whichever thread asks; a thread that was not the last one to ask begins anew."""

    def __init__(self) -> None:
        self._thread: Optional[int] = None
        self._file: Optional[BinaryIO] = None
        self._before_ns = 0

    def since(self) -> Optional[int]:
        """How long this thread waited for a CPU since it last asked, ns; None: not known."""
        if threading.get_ident() != self._thread:
            self._begin()
            return None
        if self._file is None:
            return None
        try:
            now_ns = int(os.pread(self._file.fileno(), LONGEST, 0).split()[1])
        except (OSError, ValueError, IndexError):  # the program has closed files that it did not open
            self._file = None
            return None
        waited_ns = now_ns - self._before_ns
        self._before_ns = now_ns
        return waited_ns if waited_ns >= 0 else None

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115  it stays open
            ran_ns, self._before_ns = map(int, self._file.read(LONGEST).split()[:2])
            if ran_ns == 0:  # a kernel that does not count says so of all threads
                self._file = None
        except (OSError, ValueError):
            self._file = None
