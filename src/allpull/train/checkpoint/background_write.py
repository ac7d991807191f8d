"""Write a file whole, beside the training that goes on: at most one at a time, and what went wrong is raised later."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from allpull.errors import BadInput
from allpull.rundir.write import private_folder
from allpull.units import show_bytes

SCRATCH = ".tmp"  # ending of a file that is not whole yet


class Beside:
    """A thread for one task at a time. It is waited for also where the program ends by an error."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin ``task`` when the one before has ended.

        Raises:
            Exception: what the task before raised; this one is not begun.
        """
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(task,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the task that runs, if there is one.

        Raises:
            Exception: what it raised, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            self._error = error


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Put ``content`` at ``path``, all of it or, if this is killed at any time, nothing; on the disk when it returns.

    Raises:
        BadInput: it cannot be written, and what was there before is untouched.
    """
    scratch = path.with_suffix(SCRATCH)
    try:
        private_folder(str(path.parent))
        for unfinished in path.parent.glob(f"step-*{SCRATCH}"):  # of a training that was killed here
            unfinished.unlink(missing_ok=True)
        # to a file that Python opened torch writes without the interpreter's lock, so that training goes on
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        _keep_names(path.parent)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError of its own
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInput(
            f"cannot write checkpoint {path}: {reason} ({_free(path.parent)} free there)",
            hint="make room, or give another place with --out; --resume goes on from the checkpoint before",
        ) from error
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


def _keep_names(folder: Path) -> None:
    """Have the names in ``folder`` on the disk too; file systems that refuse that do not need it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _free(folder: Path) -> str:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return show_bytes(shutil.disk_usage(there).free)
