"""The scratch file of the storage probe, and the operations that are timed on it.

The file is unlinked as soon as it is open, so nothing is left of it however the process ends. It is written with bytes
that neither compress nor repeat. Only metadata operations need names: those are in a folder of their own, which is
removed afterwards.
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

PAGE_BYTES = 4096  # what O_DIRECT asks of addresses, sizes and places, on whatever disk
BLOCK_BYTES = 1 << 20  # of one sequential read or write
MOST_OF_DISK = 0.5  # of what is free, that the files of all ranks may take
NAMES_AT_ONCE = 128  # files that are created before they are looked at, opened and removed
WRITE_S = 120.0  # in which the file must be written


@dataclass(frozen=True, slots=True)
class Done:
    """What was done in how long: ``ops`` that had ended within ``seconds``."""

    ops: int
    seconds: float


class Scratch:
    """A file without a name, ``size`` bytes of noise; ``way`` says how its pages are kept out of reads."""

    def __init__(self, folder: Path, size: int, name: str) -> None:
        """Write it.

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
        if not self._drop():  # as in tmpfs, which takes O_DIRECT too
            self.way, self.why = "cached", "the pages of its files cannot be put out of memory"

    def close(self) -> None:
        """Close it, which removes it."""
        for descriptor in (self._file, self._direct):
            if descriptor >= 0:
                os.close(descriptor)

    def read(self, *, size: int, random: bool, threads: int, seconds: float, seed: int = 0) -> Done:
        """Reads of ``size`` bytes by ``threads`` for ``seconds``, or until all has been read once where pages stay.

        Each thread reads its share of the file from begin to end, or its share of all places in an order of chance.
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
            with mmap.mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES) as buffer:  # begins at a page, as O_DIRECT wants
                target = memoryview(buffer)[:size]
                try:
                    while not over():
                        for place in share.tolist():
                            if os.preadv(descriptor, [target], place) != size:
                                raise BadInput(f"a read at {place} came short", hint="is the file system well?")
                            done += 1
                            if over():
                                return done
                        if not forever:
                            break
                finally:
                    target.release()
            return done

        return _together([share for share in np.array_split(places, threads) if len(share)], work, seconds)

    def ceiling(self, seconds: float) -> Done:
        """Reads of a page by one thread from the page cache, in order: what this process can do at the most."""
        page, places = bytearray(PAGE_BYTES), range(0, min(self.size, BLOCK_BYTES), PAGE_BYTES)
        os.pread(self._file, BLOCK_BYTES, 0)
        began, done, now = time.perf_counter(), 0, 0.0
        while now < seconds:
            for place in places:
                os.preadv(self._file, [page], place)
            done, now = done + len(places), time.perf_counter() - began
        return Done(done, now)

    def write(self, *, seconds: float) -> Done:
        """Blocks written by one thread from begin to end, again and again, and brought to the disk (fsync) at last."""
        block, began, done = os.urandom(BLOCK_BYTES), time.perf_counter(), 0
        while done == 0 or time.perf_counter() - began < seconds:
            os.pwrite(self._file, block, done * BLOCK_BYTES % (self.size // BLOCK_BYTES * BLOCK_BYTES))
            done += 1
        os.fsync(self._file)
        return Done(done, time.perf_counter() - began)

    def _fill(self) -> None:
        began, noise = time.perf_counter(), bytearray(os.urandom(BLOCK_BYTES))
        for place in range(0, self.size, BLOCK_BYTES):
            length = min(BLOCK_BYTES, self.size - place)
            for page in range(
                0, length, PAGE_BYTES
            ):  # no page is as another: disks that store such once are not fooled
                noise[page : page + 8] = (place + page).to_bytes(8, "little")
            if os.pwrite(self._file, memoryview(noise)[:length], place) != length:
                raise BadInput("the disk took only a part of a block", hint="is it full?")
            if time.perf_counter() - began > WRITE_S:
                raise BadInput(
                    f"writing {self.size:,} bytes takes more than {WRITE_S:g} s here", hint="take a smaller --file-size"
                )
        os.fsync(self._file)

    def _direct_works(self) -> bool:
        with mmap.mmap(-1, PAGE_BYTES) as page:
            try:
                return os.preadv(self._direct, [page], 0) == PAGE_BYTES
            except OSError:
                return False

    def _drop(self) -> bool:
        """Throw the pages of the file out of the page cache; whether they are gone."""
        left = pagecache.resident_pages(self._file, self.size) if pagecache.drop_pages(self._file) else None
        return left is not None and left <= pagecache.MOST_LEFT * self.size / mmap.PAGESIZE


def check_space(folder: Path, need: int) -> None:
    """Make sure that ``need`` bytes can be written in ``folder`` without filling the disk.

    Raises:
        BadInput: they cannot, or there is no such folder.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder", hint="give a folder on the storage that is to be measured")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{folder}: you may not write there", hint="give a folder that you may write to")
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if need > free * MOST_OF_DISK:
        raise BadInput(
            f"{folder}: the files of all ranks would have {show_bytes(need)}, more than half of the "
            f"{show_bytes(free)} that are free",
            hint="take smaller ones: --file-size",
        )


@contextmanager
def names(place: Path) -> Iterator[None]:
    """The folder ``place`` for files with names, which is removed with all that is in it.

    Raises:
        BadInput: it cannot be made.
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
    """The kind of file system that ``folder`` is on, such as ext4, nfs4 or lustre; None where that is not known."""
    whole = folder.resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}  # a later one hides earlier
    return next((mounts[str(place)] for place in (whole, *whole.parents) if str(place) in mounts), None)


def name_operations(place: Path, *, seconds: float) -> dict[StorageOp, Done]:
    """``NAME_OPERATIONS`` on some files in ``place``, one after the other by one thread, again and again."""
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
"""Operations on names, in an order in which each finds what it needs and nothing is left."""


def _together(
    shares: list[Places],
    work: Callable[[Places, Callable[[], bool]], int],
    seconds: float,
) -> Done:
    """All ``shares`` at once, each by a thread of its own, from a common start until ``seconds`` have gone by."""
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
            asked = [pool.submit(one, share) for share in shares]
            start.wait()
            began = time.perf_counter()
            done = sum(each.result() for each in asked)
        finally:
            stopped.set()
            start.abort()  # or threads would wait for ever for one that was told to stop before it came
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
