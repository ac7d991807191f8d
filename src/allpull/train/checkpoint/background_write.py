"""Write files atomically in a background thread, one at a time, while the training continues."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.rundir.write import SCRATCH, private_folder, replaced_file
from allpull.units import show_bytes


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


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to ``path`` atomically, even if killed, and synchronise it to disk.

    Raises:
        BadInput: it cannot be written; an existing file is untouched.
    """
    try:
        private_folder(str(path.parent))
        remove_unfinished(path.parent)
        with replaced_file(str(path)) as file:  # torch writes to a file of Python's without the GIL: training continues
            torch.save(content, file)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError of its own
        cause = error if isinstance(error, OSError) else error.__context__
        reason = getattr(cause, "strerror", None) or str(error).splitlines()[0]
        room = "free some space, or " if getattr(cause, "errno", None) in {errno.ENOSPC, errno.EDQUOT} else ""
        raise BadInput(
            f"cannot write checkpoint {path}: {reason} ({_free(path.parent)} free there)",
            hint=f"{room}choose another folder with --out; --resume uses the previous checkpoint",
        ) from error


def remove_unfinished(folder: Path) -> None:
    """Remove the checkpoints that killed trainings began in ``folder``.

    Raises:
        OSError: one cannot be removed.
    """
    for unfinished in folder.glob(Path(layout.CHECKPOINT_NAMES).stem + SCRATCH):
        unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Synchronise the names in ``folder`` to disk; file systems that refuse this do not need it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _free(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return show_bytes(shutil.disk_usage(existing).free)
