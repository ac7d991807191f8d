"""Find the ranks below one process, and read what each of their processes used.

Needs psutil, and so runs in allpull's own Python beside the ranks, as ``sidecar`` does.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, Optional, Tuple

import psutil

from allpull.observe.ledger import Key, Ledger, Sight


class Family:
    """The ranks below one process, followed from look to look."""

    def __init__(self, pid: int) -> None:
        self._ledger = Ledger()
        self._followed: Dict[Key, Tuple[psutil.Process, int]] = {}
        try:
            self._watched: Optional[psutil.Process] = psutil.Process(pid)
        except (psutil.Error, ValueError):
            self._watched = None

    def alive(self) -> bool:
        """Whether the watched process still runs; its id in the hands of another process is not it."""
        try:
            return (
                self._watched is not None
                and self._watched.is_running()
                and self._watched.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def ranks(self) -> Dict[str, Dict[str, Optional[int]]]:
        """``schema.counters.RankCounters`` of every rank seen so far, in plain values."""
        return {str(rank): figures for rank, figures in self._ledger.update(self._sights()).items()}

    def _sights(self) -> Iterator[Sight]:
        """Every process of a rank, parents before their children, as the ledger wants them."""
        family = self._family()
        keys = {process.pid: key for key, process in family.items()}
        followed: Dict[Key, Tuple[psutil.Process, int]] = {}
        for key, process in family.items():
            try:
                parent = keys.get(process.ppid())
                rank = self._rank(process, key, followed.get(parent) if parent else None)
                if rank is None:
                    continue
                followed[key] = (process, rank)
                yield Sight(key, parent, rank, _figures(process))
            except psutil.NoSuchProcess:
                followed.pop(key, None)
        self._followed = followed

    def _family(self) -> Dict[Key, psutil.Process]:
        """Descendants of the watched process, then those that lost their parent and live on."""
        family: Dict[Key, psutil.Process] = {}
        try:
            for process in self._watched.children(recursive=True) if self._watched else ():
                if process.pid != os.getpid():
                    family[process.pid, process.create_time()] = process
        except psutil.NoSuchProcess:
            pass  # the watched one ended, or another between two lines; who is followed already is found below
        for key, (process, _) in self._followed.items():
            if key not in family and process.is_running():
                family[key] = process
        return family

    def _rank(self, process: psutil.Process, key: Key, parent: Optional[Tuple[psutil.Process, int]]) -> Optional[int]:
        """The rank that ``process`` belongs to: by its own environment, else by its parent.

        One without a rank is asked again at each look: it may have been between fork and exec.
        """
        if key in self._followed:
            return self._followed[key][1]
        try:
            own = process.environ().get("RANK", "")
        except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
            own = ""
        if re.fullmatch(r"[0-9]{1,7}", own):
            return int(own)
        return parent[1] if parent else None


def _figures(process: psutil.Process) -> Dict[str, Optional[int]]:
    """What one process did and holds; a figure that may not be read is left out.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    figures: Dict[str, Optional[int]] = {}
    with process.oneshot():
        for read in (_io, _cpu, _memory):
            try:
                figures.update(read(process))
            except psutil.ZombieProcess:
                continue  # ended, not yet reaped: the ledger has its last figures
            except (psutil.AccessDenied, AttributeError, OSError):
                continue  # macOS has no io_counters; another user's process does not show it
    return figures


def _io(process: psutil.Process) -> Dict[str, int]:
    io = process.io_counters()
    return {
        "read_bytes": io.read_chars,
        "write_bytes": io.write_chars,
        "read_calls": io.read_count,
        "write_calls": io.write_count,
        "storage_read_bytes": io.read_bytes,
        "storage_write_bytes": io.write_bytes,
    }


def _cpu(process: psutil.Process) -> Dict[str, int]:
    cpu = process.cpu_times()
    used_s = cpu.user + cpu.system + getattr(cpu, "children_user", 0.0) + getattr(cpu, "children_system", 0.0)
    switches = process.num_ctx_switches()
    return {"cpu_ns": round(used_s * 1e9), "switches": switches.voluntary + switches.involuntary}


def _memory(process: psutil.Process) -> Dict[str, int]:
    return {"memory_bytes": process.memory_info().rss, "threads": process.num_threads()}
