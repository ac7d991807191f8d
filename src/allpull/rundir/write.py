"""Write a run directory: whole files by rename, records by appending. Standard library only.

One writer per file. Records are buffered for at most ``FLUSH_NS``, so a killed rank loses at most that; after an
error a writer closes itself and reports it, and the program it records continues.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

THINNING = 4  # each half of the remaining budget covers twice as many lines as all before it
SCRATCH = ".tmp"
"""Suffix of a file that is still being written."""
MAX_STEM = 100  # characters of a name in its temporary name: file systems allow 255 bytes
FLUSH_NS = 200_000_000  # a fifth of a second: a parallel file system copes with five small writes a second


def private_folder(path: str) -> None:
    """Create ``path`` and its parents, readable by their owner only (DESIGN §3.7).

    Raises:
        OSError: it cannot be created.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)


@contextmanager
def replaced_file(path: str, dir_fd: Optional[int] = None) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of ``path`` once the block ends, or disappears on an error.

    The folder may belong to somebody else: nobody can guess the temporary name and plant a link there, none is
    followed, and a folder that is exchanged meanwhile changes nothing. A link at ``path`` is replaced, not followed.
    With ``dir_fd`` a relative ``path`` is one below that open folder.

    Raises:
        OSError: the disk is full, say; an older file at ``path`` is then untouched. ``filename`` is ``path``. A device
            or a pipe there, such as /dev/null, or a link to one, is not replaced.
    """
    folder, name = os.path.split(path)
    with suppress(FileNotFoundError):
        mode = os.stat(path, dir_fd=dir_fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "Not a regular file", path)
    scratch = f"{name[:MAX_STEM]}.{secrets.token_hex(8)}{SCRATCH}"
    directory = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(scratch, flags, 0o600, dir_fd=directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(scratch, dir_fd=directory)
            raise
    except OSError as error:
        if error.filename in (None, scratch):  # a temporary name says nothing to the user
            error.filename, error.filename2 = path, None
        raise
    finally:
        os.close(directory)


def no_follow(path: str, flags: int) -> int:
    """An ``opener`` for ``open`` that refuses a link in place of the file, and creates files for their owner only."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def whole_file(path: str, content: str) -> None:
    """Write ``content`` to ``path`` atomically: a reader sees the old file or the new one.

    Raises:
        OSError: the disk is full, say; the old file is then untouched.
    """
    with replaced_file(path) as file:
        file.write(content.encode("utf-8"))


def whole_json(path: str, value: Dict[str, Any]) -> None:
    """Write ``value`` to ``path`` atomically as indented JSON.

    Raises:
        OSError: as ``whole_file``.
        ValueError: it holds a number that JSON does not have.
    """
    whole_file(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


class Appender:
    """Append lines to one file, within a budget of bytes.

    Over half of the budget, only every fourth line that may be thinned is kept; over three quarters every
    sixteenth, and so on. Each such part covers twice as many lines as the one before, so the file never passes its
    budget and a long run stays covered to its end.
    ``on_trouble`` is called once, with the reason, when writing failed and the appender closed itself;
    ``on_thin`` is called each time thinning increases, with the new ``keep_one_in``.
    """

    def __init__(
        self,
        path: str,
        budget: int,
        *,
        on_trouble: Callable[[str], None],
        on_thin: Callable[[int], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self.left_out = 0
        self._budget = budget
        self._on_trouble = on_trouble
        self._on_thin = on_thin
        self._clock_ns = clock_ns
        self._lines: List[str] = []
        self._bytes = 0
        self._thin_at = budget // 2
        self._keep_one_in = 1
        self._offered = 0
        self._flushed_ns = clock_ns()
        self._descriptor: Optional[int] = None
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._file = _file_of(self._descriptor)
        except OSError as error:
            self._give_up(error)

    @property
    def is_open(self) -> bool:
        """Whether lines still reach the file."""
        return self._descriptor is not None

    def add(self, line: str, now_ns: Optional[int], *, keep: bool = False) -> None:
        """Append ``line`` (ASCII, no newline); ``keep``: it may not be thinned, unless the budget is spent.

        With ``now_ns`` the buffer is flushed when due; None: the caller flushes it.
        """
        if self._descriptor is None:
            self.left_out += 1
            return
        size = len(line) + 1
        if self._bytes + size > self._thin_at:
            self._thin(size)
        self._offered += 1
        over = self._bytes + size > self._budget
        if over or (self._keep_one_in > 1 and not keep and self._offered % self._keep_one_in):
            self.left_out += 1
            return
        self._bytes += size
        self._lines.append(line)
        if now_ns is not None and now_ns - self._flushed_ns >= FLUSH_NS:
            self.flush(now_ns)

    def add_all(self, lines: Sequence[str]) -> None:
        """Append ``lines``, each as by ``add``; the caller flushes them."""
        size = sum(map(len, lines)) + len(lines)
        if self._descriptor is None or self._keep_one_in > 1 or self._bytes + size > self._thin_at:
            for line in lines:
                self.add(line, None)
        else:
            self._offered += len(lines)
            self._bytes += size
            self._lines += lines

    def flush(self, now_ns: Optional[int] = None) -> None:
        """Write the buffer to the operating system, in whole lines, so that a kill tears none."""
        self._flushed_ns = self._clock_ns() if now_ns is None else now_ns
        if self._descriptor is None or not self._lines:
            return
        data = ("\n".join(self._lines) + "\n").encode("ascii", "backslashreplace")
        try:
            descriptor = self._need_own_file(self._descriptor)
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            self.left_out += len(self._lines)
            self._give_up(error)
        self._lines.clear()

    def close(self) -> None:
        """Flush and close; closing twice is harmless."""
        self.flush()
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._need_own_file(self._descriptor))
            self._descriptor = None

    def _thin(self, size: int) -> None:
        while self._bytes + size > self._thin_at and self._thin_at < self._budget - size:
            self._keep_one_in *= THINNING
            self._thin_at += max(size, (self._budget - self._thin_at) // 2)
            self._on_thin(self._keep_one_in)

    def _need_own_file(self, descriptor: int) -> int:
        """The descriptor, reopened if the program closed it: its number may now belong to another file."""
        try:
            if _file_of(descriptor) == self._file:
                return descriptor
        except OSError:
            pass
        self._descriptor = None
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._file = _file_of(self._descriptor)
        return self._descriptor

    def _give_up(self, error: OSError) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._on_trouble(f"{os.path.basename(self.path)}: {error.strerror or error}")


def _file_of(descriptor: int) -> Tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
