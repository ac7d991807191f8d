"""Read files into the page cache, drop them from it, and measure how much of them is cached.

No privileges are needed: the system drops clean pages of any file on request (posix_fadvise), and reports the cached
pages (mincore) of files that we may write. Pages that another process has mapped stay; so does all of a file system in
memory. For a network file system this is the cache of this host, not that of its servers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil

from allpull.units import show_bytes

PIECE_BYTES = 1 << 28  # of a file, examined or read at a time
MOST_LEFT = 0.02  # of files that count as dropped: a few pages may be in use
ENOUGH = 0.98  # of files that count as cached
MOST_OF_MEMORY = 0.5  # of what is available, that files may take up


def resident_share(paths: Iterable[Path]) -> float | None:
    """The share of the pages of ``paths`` in the page cache; None where the system does not report it.

    Raises:
        OSError: a file cannot be opened.
    """
    resident = total = 0
    for path in paths:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            pages = resident_pages(file.fileno(), size)
        if pages is None:
            return None
        resident, total = resident + pages, total - (-size // mmap.PAGESIZE)
    return resident / total if total else None


def drop(paths: Sequence[Path]) -> str:
    """Drop the pages of ``paths`` from the page cache; returns why that failed or cannot be verified, or "".

    Raises:
        OSError: a file cannot be opened.
    """
    for path in paths:
        with path.open("rb") as file:
            if not drop_pages(file.fileno()):
                return "this system has no posix_fadvise"
    left = resident_share(paths)
    if left is None:
        return "the system reports its page cache only for files that you may write to"
    return "" if left <= MOST_LEFT else f"{left:.0%} of the files stayed in the page cache"


def drop_pages(descriptor: int) -> bool:
    """Ask the system to drop a whole file from the page cache; returns whether it supports that.

    Raises:
        OSError: what had not been written yet cannot be.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    os.fsync(descriptor)  # pages that are not on disk yet cannot be dropped
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def fill(paths: Sequence[Path]) -> str:
    """Read ``paths`` into the page cache; returns why they are not in it, or "".

    Raises:
        OSError: a file cannot be read.
    """
    if (resident_share(paths) or 0.0) >= ENOUGH:
        return ""
    size = sum(path.stat().st_size for path in paths)
    if size > psutil.virtual_memory().available * MOST_OF_MEMORY:
        return f"the files have {show_bytes(size)}, more than half of the memory that is free"
    buffer = bytearray(min(PIECE_BYTES, 1 << 23))
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    share = resident_share(paths)
    return "" if share is None or share >= ENOUGH else f"only {share:.0%} of the files stayed in the page cache"


def resident_pages(descriptor: int, size: int) -> int | None:
    """Pages of an open file of ``size`` bytes in the page cache; None where the system does not report them.

    For files that we neither own nor may write, Linux reports all pages as cached (since 5.2).
    """
    mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if mincore is None or not _may_know(descriptor):
        return None
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = 0
    for start in range(0, size, PIECE_BYTES):
        length = min(PIECE_BYTES, size - start)
        marks = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        with mmap.mmap(descriptor, length, prot=mmap.PROT_READ, offset=start) as mapped:
            address = np.frombuffer(mapped, np.uint8).ctypes.data
            if mincore(address, length, marks):
                return None
        pages += int((np.frombuffer(marks.raw, np.uint8) & 1).sum())
    return pages


def _may_know(descriptor: int) -> bool:
    status, user = os.fstat(descriptor), os.geteuid()
    if user in (0, status.st_uid):
        return True
    in_group = status.st_gid in (os.getegid(), *os.getgroups())
    return bool(status.st_mode & (stat.S_IWGRP if in_group else stat.S_IWOTH))
