"""Record which process owns a virtual cluster, and end the processes of clusters whose owner has died. Linux only.

The kernel removes namespaces, links and mounts after the last process inside, so a cluster is gone when its processes
are. Each of them has the cluster's id in its environment, which forks inherit and no other process has. Before the
first one starts, a file records which process owns that id. Three mechanisms end what a killed owner leaves:

1. the keeper, which the kernel signals when its parent dies;
2. if the keeper is killed too, the same signal from parent to child, down to the ranks;
3. for anything that is still left, ``clean_dead`` at the next start.

Only processes with the id of a dead owner are ever touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import signal
import stat
import sys
import time
from pathlib import Path

from allpull.rundir.write import whole_json

TAG = "ALLPULL_CLUSTER"
"""The variable that names the cluster of a process."""

SCHEMA = "allpull.cluster-owner/1.0"
_PR_SET_PDEATHSIG = 1
_ID = re.compile(r"[0-9a-f]{32}")
_ROUNDS = 50  # of killing: processes that are forked during one are found in the next
_PAUSE_S = 0.02
_STARTING_S = 2.0  # from fork to the end of exec, on a busy machine
_START_FIELD = 22 - 3  # starttime of proc(5)'s stat, counted from the field after the command's name


def new_id() -> str:
    """A unique id for a cluster that nobody can guess."""
    return secrets.token_hex(16)


def folder() -> Path:
    """The folder of owner files: below /run for root, else in the user's own run-time folder."""
    if os.geteuid() == 0:
        return Path("/run/allpull")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "allpull" if runtime else Path(f"/tmp/allpull-{os.geteuid()}")  # noqa: S108  owner is checked


def claim(cluster: str, directory: Path, *, place: Path | None = None) -> Path:
    """Record that this process owns ``cluster``, whose records go to ``directory``; returns the owner file.

    Raises:
        OSError: it cannot be written, or the folder belongs to someone else.
    """
    place = place or folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(place):
        raise PermissionError(13, "it belongs to another user, or others may write to it", str(place))
    path = place / f"{cluster}.json"
    owner = os.getpid()
    record = {"schema": SCHEMA, "id": cluster, "owner_pid": owner, "owner_start_ticks": start_ticks(owner)}
    whole_json(str(path), {**record, "boot_id": _boot_id(), "directory": str(directory)})
    return path


def release(path: Path) -> None:
    """Remove the owner file of a cluster of which nothing is left."""
    path.unlink(missing_ok=True)


def clean_dead(place: Path | None = None) -> int:
    """End the clusters of dead owners; returns how many there were."""
    place = place or folder()
    if not _is_ours(place):
        return 0
    cleaned = 0
    for path in sorted(place.glob("*.json")):
        cluster = path.stem
        if _ID.fullmatch(cluster) and _is_orphan(path):
            end_all(cluster)
            release(path)
            cleaned += 1
    return cleaned


def _is_orphan(path: Path) -> bool:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        owner, started, boot = int(record["owner_pid"]), record["owner_start_ticks"], record["boot_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # a file that cannot be parsed is left alone
    return bool(boot != _boot_id() or start_ticks(owner) != started)


def end_all(cluster: str) -> None:
    """Kill every process of ``cluster`` but this one; returns when none is left, or after ``_ROUNDS`` attempts."""
    for _ in range(_ROUNDS):
        descriptors, is_complete = _processes(cluster)
        for descriptor in descriptors:
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            finally:
                os.close(descriptor)
        if is_complete and not descriptors:
            return
        time.sleep(_PAUSE_S)


def _processes(cluster: str) -> tuple[list[int], bool]:
    """A pidfd of each process of ``cluster`` but this one; and whether these are certainly all.

    A pidfd never refers to a later process with the same id.
    """
    mark = f"{TAG}={cluster}".encode()
    descriptors, is_complete = [], True
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            descriptor = os.pidfd_open(int(entry.name))
        except OSError:
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            environ = b"?"
        if mark in environ.split(b"\0"):
            descriptors.append(descriptor)
            continue
        os.close(descriptor)
        is_complete = is_complete and not (environ == b"" and _is_starting(entry))
    return descriptors, is_complete


def _is_starting(entry: Path) -> bool:
    """Whether a process that shows no environment may be executing a program, when it shows none for a moment."""
    ticks = start_ticks(int(entry.name))
    try:
        (entry / "exe").readlink()
    except OSError:
        return False  # a kernel thread
    if ticks is None:
        return False
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now_s - ticks / os.sysconf("SC_CLK_TCK") < _STARTING_S


def end_with_parent(parent: int, number: int) -> None:
    """Have the kernel send this process signal ``number`` when process ``parent`` dies; exit if it has already died."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, has ended")


def start_ticks(pid: int) -> int | None:
    """When process ``pid`` was started, in clock ticks since boot; None: no such process, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name before it may contain anything
    return None if fields[0] in "ZX" else int(fields[_START_FIELD])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _is_ours(place: Path) -> bool:
    """Whether ``place`` is a folder that belongs to this user, and to which no other user may write."""
    try:
        status = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
