"""Know a virtual cluster's processes again when its owner has died, and end them. Linux only.

The kernel takes namespaces, links and mounts down after the last process inside; so a cluster is gone when its
processes are. Each of them carries the cluster's id in its environment, where a fork leaves it and nobody else has it,
and before the first is started a file says which process owns that id. Three things end what a killed owner leaves:

1. the keeper, which is told by the kernel that its parent has died;
2. should the keeper be killed too, the same signal from parent to child, down to the ranks;
3. should anything be left still, ``clean_dead`` at the next start.

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
_ROUNDS = 50  # of looking for processes to kill: those that fork meanwhile are found in the next
_PAUSE_S = 0.02
_STARTING_S = 2.0  # from fork to the end of exec, on a busy machine
_START_FIELD = 22 - 3  # starttime of proc(5)'s stat, counted from the field after the command's name


def new_id() -> str:
    """A name for a cluster that nothing else has or can guess."""
    return secrets.token_hex(16)


def folder() -> Path:
    """Where owners are written down: below /run for root, else in the user's own run-time folder."""
    if os.geteuid() == 0:
        return Path("/run/allpull")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "allpull" if runtime else Path(f"/tmp/allpull-{os.geteuid()}")  # noqa: S108  owner is checked


def claim(cluster: str, directory: Path, *, place: Path | None = None) -> Path:
    """Write down that this process owns ``cluster``, whose records go to ``directory``; the file that says so.

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
    """Nothing is left of a cluster: forget its owner."""
    path.unlink(missing_ok=True)


def clean_dead(place: Path | None = None) -> int:
    """End what owners that are dead left behind; how many clusters that were."""
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
        return False  # what cannot be understood is left alone
    return bool(boot != _boot_id() or start_ticks(owner) != started)


def end_all(cluster: str) -> None:
    """Kill every process of ``cluster`` but this one; returns when none is left."""
    for _ in range(_ROUNDS):
        found, sure = _processes(cluster)
        for descriptor in found:
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            finally:
                os.close(descriptor)
        if sure and not found:
            return
        time.sleep(_PAUSE_S)


def _processes(cluster: str) -> tuple[list[int], bool]:
    """A descriptor of each process of ``cluster``, which cannot come to mean another one; and whether these are all."""
    mark = f"{TAG}={cluster}".encode()
    found, sure = [], True
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
            found.append(descriptor)
            continue
        os.close(descriptor)
        sure = sure and not (environ == b"" and _is_starting(entry))
    return found, sure


def _is_starting(entry: Path) -> bool:
    """Whether a process without an environment may be about to get one: between the two, exec shows none."""
    ticks = start_ticks(int(entry.name))
    try:
        (entry / "exe").readlink()
    except OSError:
        return False  # a thread of the kernel
    if ticks is None:
        return False
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now_s - ticks / os.sysconf("SC_CLK_TCK") < _STARTING_S


def end_with_parent(parent: int, number: int) -> None:
    """Have the kernel send us signal ``number`` when process ``parent`` dies; leave at once where it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, has ended")


def start_ticks(pid: int) -> int | None:
    """When process ``pid`` was started, in clock ticks since boot; None: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[_START_FIELD])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _is_ours(place: Path) -> bool:
    """Whether ``place`` is a folder of ours that nobody else may write to."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
