"""Write files atomically in a background thread, one at a time, while the training continues."""

from __future__ import annotations

import errno
import fnmatch
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.rundir.write import SCRATCH, replaced_file
from allpull.units import show_bytes

UNFINISHED = Path(layout.CHECKPOINT_NAMES).stem + SCRATCH  # what killed trainings began


class BackgroundTask:
    """A thread for one task at a time; errors are raised by the next call. The process waits for it at exit."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Start ``task`` once the previous one has ended.

        Raises:
            Exception: the error of the previous task; this one is not started.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the running task, if any.

        Raises:
            Exception: the error of the task, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # noqa: BLE001  ``wait`` raises it
            self._error = error


def open_folder(path: str | Path, dir_fd: int | None = None) -> int:
    """A descriptor of the folder ``path``; with ``dir_fd`` of the one below that open folder."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)


def write_whole(path: Path, content: dict[str, Any], *, directory: int, keep: int) -> None:
    """Write ``content`` to ``path`` atomically, even if killed; of it and the older ones only ``keep`` files are kept.

    ``directory`` is the run directory, open since the training began: whoever puts another one, or a link, in its place
    gets no file and loses none. Newer files stay: unreadable ones, or those of another training.

    Raises:
        BadInput: it cannot be written; an existing file is untouched.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(path.parent.name, 0o700, dir_fd=directory)
        folder = open_folder(path.parent.name, directory)
        try:
            _remove(_names(folder, UNFINISHED), folder)
            # torch writes to a file of Python's without the GIL: training continues
            with replaced_file(path.name, folder) as file:
                torch.save(content, file)
            with suppress(OSError):  # file systems that refuse this do not need it
                os.fsync(folder)
            older = [name for name in _names(folder, layout.CHECKPOINT_NAMES) if name < path.name]
            _remove(older[: max(0, len(older) - keep + 1)], folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError of its own
        cause = error if isinstance(error, OSError) else error.__context__
        reason = getattr(cause, "strerror", None) or str(error).splitlines()[0]
        hint, room = "choose another folder with --out", f" ({_free(path.parent)} free there)"
        match getattr(cause, "errno", None):
            case errno.ENOSPC | errno.EDQUOT:
                hint = f"free some space, or {hint}"
            case errno.EMFILE | errno.ENFILE:  # of which another folder has no more
                hint, room = "raise the limit of open files (ulimit -n)", ""
        raise BadInput(
            f"cannot write checkpoint {path}: {reason}{room}",
            hint=f"{hint}; --resume uses the previous checkpoint",
        ) from error


def _names(folder: int, pattern: str) -> list[str]:
    """Sorted names in the open ``folder`` that match ``pattern``."""
    return sorted(fnmatch.filter(os.listdir(folder), pattern))


def _remove(names: Iterable[str], folder: int) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _free(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    status = os.statvfs(existing)
    no_inodes = bool(status.f_files) and not status.f_favail  # each file needs one
    return "no inodes" if no_inodes else show_bytes(shutil.disk_usage(existing).free)
