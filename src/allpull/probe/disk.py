"""The scratch file of the storage probe, and the operations that are timed on it.

The file is unlinked as soon as it is open, so nothing remains however the process ends. Its bytes neither compress nor
repeat. Only metadata operations need file names: these files are in a separate folder, which is removed afterwards.
"""

from __future__ import annotations

import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import psutil

from allpull.errors import BadInput
from allpull.probe import pagecache
from allpull.units import show_bytes

if TYPE_CHECKING:  # a rank needs no pydantic
    from allpull.schema.probes import StorageOp, StorageWay

Places = npt.NDArray[np.int64]

PAGE_BYTES = 4096  # alignment of addresses, sizes and offsets that satisfies O_DIRECT on any disk
BLOCK_BYTES = 1 << 20  # per sequential read or write
MOST_OF_DISK = 0.5  # share of the free space that the files of all ranks may take
NAMES_AT_ONCE = 128  # files created before they are queried, opened and removed
WRITE_S = 120.0  # limit for writing the file


@dataclass(frozen=True, slots=True)
class Done:
    """Operations timed: ``ops`` that ended within ``seconds``."""

    ops: int
    seconds: float


class Scratch:
    """A file without a name, ``size`` bytes of noise; ``way`` is how reads avoid the page cache."""

    def __init__(self, folder: Path, size: int, name: str) -> None:
        """Create and write the file.

        Raises:
            BadInput: the folder is missing or read-only, the disk has too little space or is too slow.
        """
        path = folder / name
        self.size, self._direct = size, -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._direct, self.why = _open_direct(path)
            finally:
                path.unlink()
            self._fill()
        except OSError as error:
            raise BadInput(f"{folder}: {error.strerror}", hint="give a folder that you may write to") from error
        if self._direct >= 0 and not self._direct_works():
            os.close(self._direct)
            self._direct, self.why = -1, "the file system takes O_DIRECT and does not read by it"
        self.way: StorageWay = "direct" if self._direct >= 0 else "dropped"
        if not self._drop():  # as in tmpfs, which accepts O_DIRECT too
            self.way, self.why = "cached", "the pages of its files cannot be put out of memory"

    def close(self) -> None:
        """Close the file, which removes it."""
        for descriptor in (self._file, self._direct):
            if descriptor >= 0:
                os.close(descriptor)

    def read(self, *, size: int, random: bool, threads: int, seconds: float, seed: int = 0) -> Done:
        """Reads of ``size`` bytes by ``threads`` for ``seconds``, or until all has been read once where pages stay.

        Each thread reads its share of the file from start to end, or its share of all offsets in random order.
        """
        places = np.arange(self.size // size, dtype=np.int64) * size
        if random:
            np.random.default_rng(seed).shuffle(places)
        if self.way != "direct":
            self._drop()
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_SEQUENTIAL)
        descriptor, forever = (self._direct, True) if self.way == "direct" else (self._file, self.way == "cached")

        def work(share: Places, over: Callable[[], bool]) -> int:
            done = 0
            with mmap.mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES) as buffer:  # page-aligned, as O_DIRECT requires
                target = memoryview(buffer)[:size]
                try:
                    while not over():
                        for place in share.tolist():
                            if os.preadv(descriptor, [target], place) != size:
                                raise BadInput(
                                    f"a read at byte {place:,} returned too few bytes", hint="check the file system"
                                )
                            done += 1
                            if over():
                                return done
                        if not forever:
                            break
                finally:
                    target.release()
            return done

        return _in_threads([share for share in np.array_split(places, threads) if len(share)], work, seconds)

    def ceiling(self, seconds: float) -> Done:
        """Reads of a page by one thread from the page cache, in order: the most that this process can reach."""
        page, places = bytearray(PAGE_BYTES), range(0, min(self.size, BLOCK_BYTES), PAGE_BYTES)
        os.pread(self._file, BLOCK_BYTES, 0)
        began, done, now = time.perf_counter(), 0, 0.0
        while now < seconds:
            for place in places:
                os.preadv(self._file, [page], place)
            done, now = done + len(places), time.perf_counter() - began
        return Done(done, now)

    def write(self, *, seconds: float) -> Done:
        """Blocks written by one thread from start to end, repeatedly, each time then flushed to the disk (fsync).

        Blocks that were overwritten in the page cache would never reach the disk.
        """
        block, began, done = os.urandom(BLOCK_BYTES), time.perf_counter(), 0
        blocks = self.size // BLOCK_BYTES
        while done == 0 or time.perf_counter() - began < seconds:
            os.pwrite(self._file, block, done % blocks * BLOCK_BYTES)
            done += 1
            if done % blocks == 0:
                os.fsync(self._file)
        os.fsync(self._file)
        return Done(done, time.perf_counter() - began)

    def _fill(self) -> None:
        began, noise = time.perf_counter(), bytearray(os.urandom(BLOCK_BYTES))
        for place in range(0, self.size, BLOCK_BYTES):
            length = min(BLOCK_BYTES, self.size - place)
            for page in range(0, length, PAGE_BYTES):  # every page differs, for disks that deduplicate
                noise[page : page + 8] = (place + page).to_bytes(8, "little")
            if os.pwrite(self._file, memoryview(noise)[:length], place) != length:
                raise BadInput("the disk accepted only part of a block", hint="check that it is not full")
            if time.perf_counter() - began > WRITE_S:
                raise BadInput(
                    f"writing {self.size:,} bytes takes more than {WRITE_S:g} s here",
                    hint="choose a smaller --file-size",
                )
        os.fsync(self._file)

    def _direct_works(self) -> bool:
        with mmap.mmap(-1, PAGE_BYTES) as page:
            try:
                return os.preadv(self._direct, [page], 0) == PAGE_BYTES
            except OSError:
                return False

    def _drop(self) -> bool:
        """Drop the file's pages from the page cache; returns whether they are gone."""
        pages = pagecache.resident_pages(self._file, self.size) if pagecache.drop_pages(self._file) else None
        return pages is not None and pages <= pagecache.MOST_LEFT * self.size / mmap.PAGESIZE


def check_space(folder: Path, need: int) -> None:
    """Make sure that ``need`` bytes can be written in ``folder`` without filling the disk.

    Raises:
        BadInput: they cannot, or there is no such folder.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder", hint="give a folder on the storage to measure")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{folder}: you may not write there", hint="give a folder that you may write to")
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if need > free * MOST_OF_DISK:
        raise BadInput(
            f"{folder}: the files of all ranks would take {show_bytes(need)}, more than half of the "
            f"{show_bytes(free)} that are free",
            hint="choose a smaller --file-size",
        )


@contextmanager
def names(place: Path) -> Iterator[None]:
    """Create the folder ``place`` for files with names; it is removed with its contents.

    Raises:
        BadInput: it cannot be created.
    """
    try:
        place.mkdir(mode=0o700)
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror}", hint="give a folder that you may write to") from error
    try:
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)


def file_system(folder: Path) -> str | None:
    """The type of the file system that holds ``folder``, such as ext4, nfs4 or lustre; None where it is not known."""
    whole = folder.resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}  # a later one hides earlier
    return next((mounts[str(place)] for place in (whole, *whole.parents) if str(place) in mounts), None)


def name_operations(place: Path, *, seconds: float) -> dict[StorageOp, Done]:
    """``NAME_OPERATIONS`` on files in ``place``, repeatedly, one after the other, by one thread."""
    paths = [str(place / f"{number:04d}") for number in range(NAMES_AT_ONCE)]
    spent_s = dict.fromkeys(NAME_OPERATIONS, 0.0)
    rounds, end = 0, time.perf_counter() + seconds
    while rounds == 0 or time.perf_counter() < end:
        for op, step in NAME_OPERATIONS.items():
            began = time.perf_counter()
            for path in paths:
                step(path)
            spent_s[op] += time.perf_counter() - began
        rounds += 1
    return {op: Done(rounds * len(paths), spent) for op, spent in spent_s.items()}


def _close(path: str, flags: int) -> None:
    os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))


NAME_OPERATIONS: dict[StorageOp, Callable[[str], object]] = {
    "create": lambda path: _close(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "stat": os.stat,
    "open": lambda path: _close(path, os.O_RDONLY),
    "unlink": os.unlink,
}
"""Operations on names, ordered so that each finds the files that it needs and none remains."""


def _in_threads(
    shares: list[Places],
    work: Callable[[Places, Callable[[], bool]], int],
    seconds: float,
) -> Done:
    """All ``shares`` at once, one thread each, from a common start until ``seconds`` have passed."""
    start, stopped = threading.Barrier(len(shares) + 1), threading.Event()
    ends: list[float] = []

    def one(share: Places) -> int:
        start.wait()
        end = time.perf_counter() + seconds
        done = work(share, lambda: stopped.is_set() or time.perf_counter() >= end)
        ends.append(time.perf_counter())
        return done

    with ThreadPoolExecutor(len(shares), thread_name_prefix="allpull-read") as pool:
        try:
            futures = [pool.submit(one, share) for share in shares]
            start.wait()
            began = time.perf_counter()
            done = sum(each.result() for each in futures)
        finally:
            stopped.set()
            start.abort()  # or threads would wait forever for one that stopped before it reached the barrier
    return Done(done, max(ends) - began)


def _open_direct(path: Path) -> tuple[int, str]:
    """A descriptor of ``path`` that reads past the page cache, or −1 and why there is none."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return -1, "this system has no O_DIRECT"
    try:
        return os.open(path, os.O_RDONLY | flag | os.O_CLOEXEC), ""
    except OSError as error:
        return -1, f"the file system does not allow O_DIRECT ({error.strerror})"
