"""Read what a Linux kernel reports in /proc and /sys. Standard library only; nothing here raises.

``Tree`` has another root in tests; on a system without these files (macOS) everything is None.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Set, Tuple

MAX_BYTES = 1 << 23  # /proc/cpuinfo of a thousand CPUs is 2 MB
CHUNK_BYTES = 1 << 16  # files in /proc/sys fail a read of 4 MiB or more
START_FIELD = 19  # of what follows the name in /proc/PID/stat: proc_pid_stat(5) counts it as field 22
MAX_TEXT = 4096  # characters of a small file


class Mount:
    """One line of mountinfo: ``kind`` mounted at ``point``, showing its part ``inside``, with its own ``options``."""

    def __init__(self, inside: str, point: str, kind: str, options: Set[str]) -> None:
        self.inside = inside
        self.point = point
        self.kind = kind
        self.options = options


class Tree:
    """The files below ``root``; paths are relative to it."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def read(self, path: str) -> str:
        """The text of a file, at most ``MAX_BYTES`` of it; empty if it is absent or unreadable."""
        content = b""
        try:
            with open(os.path.join(self.root, path), "rb", buffering=0) as file:
                while len(content) < MAX_BYTES:
                    chunk = file.read(CHUNK_BYTES)
                    if not chunk:
                        break
                    content += chunk
        except (OSError, ValueError):
            return ""
        return content.decode("utf-8", "replace")

    def text(self, path: str) -> Optional[str]:
        """The content of a small file without surrounding white space; None if it is absent or empty."""
        return self.read(path).strip()[:MAX_TEXT] or None

    def fields(self, path: str) -> Dict[str, str]:
        """``key: value`` lines; the first value of each key counts, so the first CPU represents all."""
        fields: Dict[str, str] = {}
        for line in self.read(path).splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key.strip(), value.strip())
        return fields

    def number(self, path: str) -> Optional[float]:
        """The number that a file begins with; None: there is none."""
        return number(self.text(path))

    def names(self, path: str) -> List[str]:
        """The names in a folder, sorted; empty if there is none."""
        try:
            return sorted(os.listdir(os.path.join(self.root, path)))
        except (OSError, ValueError):
            return []

    def mounts(self) -> List[Mount]:
        """The mounts of this process, oldest first (proc_pid_mountinfo(5))."""
        mounts = []
        for line in self.read("proc/self/mountinfo").splitlines():
            left, dash, right = line.partition(" - ")
            before, after = left.split(" "), right.split(" ")
            if dash and len(before) >= 5 and len(after) >= 3:
                inside, point = (re.sub(r"\\([0-7]{3})", _octal, path) for path in before[3:5])
                mounts.append(Mount(inside, point, after[0], set(after[2].split(","))))
        return mounts


class WatchedProcess:
    """One process, distinguished by its start time from a later process with the same id."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = start_ticks(pid)

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        if self._started is None and not os.path.exists("/proc/self/stat"):
            return _takes_signals(self._pid)  # not Linux
        return self._started is not None and start_ticks(self._pid) == self._started


def start_ticks(pid: int) -> Optional[int]:
    """When process ``pid`` was started, in clock ticks since boot; None: it has ended, or this is not Linux."""
    fields = Tree().read(f"proc/{pid}/stat").rpartition(")")[2].split()  # the name before it may contain anything
    return int(fields[START_FIELD]) if len(fields) > START_FIELD and fields[0] not in "ZX" else None


def _takes_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def number(text: Optional[str]) -> Optional[float]:
    """The number that ``text`` begins with; None where it does not.

    >>> number("100 Gb/sec (4X EDR)"), number("-1"), number("max 100000")
    (100.0, -1.0, None)
    """
    match = re.match(r"-?\d{1,15}(?:\.\d{1,9})?(?=\s|$)", text or "")
    return float(match.group(0)) if match else None


def cpu_list(text: str) -> Set[int]:
    """The CPUs that the kernel's list notation names; malformed parts are left out.

    >>> sorted(cpu_list("0-2,8,12-13"))
    [0, 1, 2, 8, 12, 13]
    """
    cpus: Set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match:
            cpus.update(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return cpus


def usable_cpus(tree: Optional[Tree] = None) -> int:
    """Whole CPUs that this process may keep busy: limited by its affinity and its control groups."""
    quota = cpu_quota(tree or Tree())
    return allowed_cpus() if quota is None else max(1, min(allowed_cpus(), int(quota)))


def allowed_cpus() -> int:
    """CPUs that this process may run on, regardless of CPU quotas."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(tree: Tree) -> Optional[float]:
    """CPUs that the control groups of this process allow: the minimum from its own up to the root; None: no limit.

    Version 2 keeps "quota period" in cpu.max, version 1 two files of its cpu controller (kernel documentation:
    admin-guide/cgroup-v2, scheduler/sched-bwc).
    """
    limits = []
    for version, folder in _cgroup_folders(tree):
        if version == 2:
            quota, period = [number(word) for word in [*(tree.text(f"{folder}/cpu.max") or "").split(), "", ""][:2]]
        else:
            quota, period = (tree.number(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota is not None and period is not None and quota > 0 and period > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_left(tree: Tree) -> Optional[int]:
    """Bytes that the control groups of this process still allow, the page cache counted as used; None: no limit."""
    left = [max(0, most - used) for most, used in _memory_use(tree) if used is not None]
    return min(left, default=None)


def memory_limit(tree: Tree) -> Optional[int]:
    """Bytes that the control groups of this process allow: the minimum from its own up to the root; None: no limit."""
    return min((most for most, _ in _memory_use(tree)), default=None)


def oom_kills(tree: Tree) -> Optional[int]:
    """Processes of our memory control group that the kernel has ended for want of memory; None: it does not say.

    Version 2 counts those of groups below, too (admin-guide/cgroup-v2: memory.events; cgroup-v1/memory: oom_control).
    """
    for version, folder in _cgroup_folders(tree, "memory"):
        text = tree.read(f"{folder}/{'memory.events' if version == 2 else 'memory.oom_control'}")
        counts = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        killed = number(counts.get("oom_kill"))
        if killed is not None:
            return int(killed)
    return None


def _memory_use(tree: Tree) -> List[Tuple[int, Optional[int]]]:
    """Of each control group of ours with a limit, its limit and its use, in bytes."""
    uses = []
    for version, folder in _cgroup_folders(tree, "memory"):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        most, used = (number((tree.text(f"{folder}/{name}") or "").strip()) for name in names)
        if most is not None and most < UNLIMITED:
            uses.append((int(most), None if used is None else int(used)))
    return uses


UNLIMITED = 1 << 60  # bytes; what version 1 has in place of "max" is more


def _cgroup_folders(tree: Tree, controller: str = "cpu") -> List[Tuple[int, str]]:
    """Version and folder of each control group of ``controller`` that holds us, from ours up to the mount."""
    paths: Dict[int, str] = {}
    for line in tree.read("proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            paths[2] = path
        elif controller in controllers.split(","):
            paths[1] = path
    folders: List[Tuple[int, str]] = []
    for mount in tree.mounts():
        version = {"cgroup2": 2, "cgroup": 1}.get(mount.kind)
        if version not in paths or (version == 1 and controller not in mount.options):
            continue
        # In a container the mount shows a part of the tree, and our path may be relative to a folder above it.
        below = os.path.relpath(paths[version] or "/", mount.inside or "/")
        parts = [] if below == "." or below.startswith("..") else below.split("/")
        point = mount.point.strip("/")
        folders += [(version, "/".join([point, *parts[:length]])) for length in range(len(parts), -1, -1)]
    return folders


def _octal(match: "re.Match[str]") -> str:
    return chr(int(match.group(1), 8))
