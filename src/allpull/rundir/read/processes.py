"""Whether a process that left records still runs on this machine, as far as /proc shows it."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether process ``pid`` runs here; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] != [b"Z"]


def boot_id() -> str | None:
    """The name of the time since this machine started, which its monotonic clock counts; None outside Linux."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
