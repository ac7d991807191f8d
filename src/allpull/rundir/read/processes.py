"""Whether a process that left records, or runs a job, still runs on this machine, as far as /proc shows it."""

from __future__ import annotations

import os
from pathlib import Path

from allpull.kernel import start_ticks
from allpull.schema.run import LauncherProcess


def is_alive(pid: int) -> bool:
    """Whether process ``pid`` runs here; a zombie does not."""
    return start_ticks(pid) is not None


def boot_id() -> str | None:
    """The name of the time since this machine started, which its monotonic clock counts; None outside Linux."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def this_process() -> LauncherProcess | None:
    """This process, as others find it; None outside Linux."""
    boot, namespace, started = boot_id(), _pid_namespace(), start_ticks(os.getpid())
    if boot is None or namespace is None or started is None:
        return None
    return LauncherProcess(pid=os.getpid(), start_ticks=started, boot_id=boot, pid_namespace=namespace)


def is_gone(process: LauncherProcess) -> bool:
    """Whether ``process`` ran on this machine and has certainly ended."""
    if process.boot_id != boot_id() or process.pid_namespace != _pid_namespace():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user, and /proc may hide it
        return start_ticks(process.pid) not in {None, process.start_ticks}
    return start_ticks(process.pid) != process.start_ticks


def _pid_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None
