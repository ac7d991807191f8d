"""Find the processes of each rank of a host, and read the resources that each used.

The helpers of a rank, such as loader workers, are its descendants. Needs psutil.
"""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, Mapping, Optional, Tuple

import psutil

from .process_usage import Key, ProcessSample, ProcessUsage
from .rank_registry import RankRegistry, rank_by_variables

MAX_THREADS = 256  # of one process whose wait for a CPU is read


class ProcessTree:
    """The ranks in ``registry`` and those below process ``pid``, tracked from sample to sample."""

    def __init__(self, pid: int, registry: Optional[RankRegistry] = None) -> None:
        self._usage = ProcessUsage()
        self._registry = registry
        self._registered: Dict[Key, Tuple[psutil.Process, int]] = {}
        self._tracked: Dict[Key, Tuple[psutil.Process, int]] = {}
        try:
            self._watched: Optional[psutil.Process] = psutil.Process(pid)
        except (psutil.Error, ValueError):
            self._watched = None
        self._above = _environ(self._watched) if self._watched else {}

    def ranks(self) -> Dict[str, Dict[str, Optional[int]]]:
        """``schema.counters.RankCounters`` of every rank seen so far, in plain values."""
        self._listen()
        return {str(rank): figures for rank, figures in self._usage.update(self._samples()).items()}

    def pids(self) -> List[int]:
        """The processes of ranks in the last sample."""
        return [process.pid for process, _ in self._tracked.values()]

    def _listen(self) -> None:
        for pid, rank in self._registry.news().items() if self._registry else ():
            try:
                process = psutil.Process(pid)
                if self._registry and self._registry.is_of_job(_environ(process)):
                    self._registered[pid, process.create_time()] = (process, rank)
            except psutil.Error:
                continue  # it has ended already

    def _samples(self) -> Iterator[ProcessSample]:
        """Every process of a rank, parents before their children, as ``ProcessUsage`` requires."""
        tree = self._processes()
        keys = {process.pid: key for key, process in tree.items()}
        tracked: Dict[Key, Tuple[psutil.Process, int]] = {}
        for key, process in tree.items():
            try:
                parent = keys.get(process.ppid())
                rank = self._rank(process, key, tracked.get(parent) if parent else None)
                if rank is None:
                    continue
                tracked[key] = (process, rank)
                yield ProcessSample(key, parent, rank, _figures(process))
            except psutil.NoSuchProcess:
                tracked.pop(key, None)
        self._tracked = tracked

    def _processes(self) -> Dict[Key, psutil.Process]:
        """The watched process if it is a rank, its descendants, other ranks with theirs, and tracked orphans."""
        watched = self._watched.pid if self._watched else None
        tree = {key: entry[0] for key, entry in self._registered.items() if key[0] == watched and entry[0].is_running()}
        self._add(tree, self._watched)
        for key, (process, _) in list(self._registered.items()):
            if key in tree:
                continue
            if process.is_running():
                tree[key] = process
                self._add(tree, process)
            else:
                del self._registered[key]
        for key, (process, _) in self._tracked.items():
            if key not in tree and process.is_running():
                tree[key] = process
        return tree

    def _add(self, tree: Dict[Key, psutil.Process], ancestor: Optional[psutil.Process]) -> None:
        for process in _descendants(ancestor):
            try:
                if process.pid != os.getpid():
                    tree[process.pid, process.create_time()] = process
            except psutil.NoSuchProcess:
                continue

    def _rank(self, process: psutil.Process, key: Key, parent: Optional[Tuple[psutil.Process, int]]) -> Optional[int]:
        """The rank of ``process``: as registered, as before, by its own environment, or by its parent.

        A process without a rank is examined again in each sample: it may have been between fork and exec.
        """
        known = self._registered.get(key) or self._tracked.get(key)
        if known is not None:
            return known[1]
        own = rank_by_variables(_environ(process), self._above)
        if own is not None:
            return own
        return parent[1] if parent else None


def _descendants(ancestor: Optional[psutil.Process]) -> List[psutil.Process]:
    """All descendants of ``ancestor``, parents first."""
    try:
        return ancestor.children(recursive=True) if ancestor else []
    except psutil.NoSuchProcess:
        return []  # it ended, or another did between two lines; processes that are tracked already do not need it


def _environ(process: psutil.Process) -> Mapping[str, str]:
    """The environment of ``process`` at its start; empty if it may not be read."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _figures(process: psutil.Process) -> Dict[str, Optional[int]]:
    """The counters of one process; one that may not be read is left out.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    figures: Dict[str, Optional[int]] = {}
    with process.oneshot():
        for read in (_io, _cpu, _memory, _queue):
            try:
                figures.update(read(process))
            except psutil.ZombieProcess:
                continue  # ended, not yet reaped: the usage has its last counters
            except (psutil.AccessDenied, AttributeError, OSError):
                continue  # macOS has no io_counters; those of another user may not be read
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


def _queue(process: psutil.Process) -> Dict[str, int]:
    """How long its threads were ready to run and had no CPU (schedstat of Linux, second field)."""
    folder = f"/proc/{process.pid}/task"
    waited = []
    for thread in os.listdir(folder)[:MAX_THREADS]:
        try:
            with open(f"{folder}/{thread}/schedstat", encoding="ascii") as file:
                waited.append(int(file.read().split()[1]))
        except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
            continue  # this thread has ended
    return {"queued_ns": sum(waited)} if waited else {}
