"""Add up the counters of the processes of a rank, so that nothing is lost or counted twice when a process ends.

When a process is reaped, Linux adds its I/O and CPU time to its parent's (``wait_task_zombie`` in kernel/exit.c;
``children_user`` of proc_pid_stat(5)). A loader worker that ended is then part of its parent's counters, and keeping
its last value would count it twice. If no ancestor in the rank is alive to have reaped it, its last value is kept.
Counters that a parent does not take over (context switches) are always kept.
"""

from __future__ import annotations

from typing import Dict, Iterable, Optional, Tuple

Key = Tuple[int, float]
"""Process id and start time: a reused process id is another process."""

INHERITED = (
    "cpu_ns",
    "read_bytes",
    "write_bytes",
    "read_calls",
    "write_calls",
    "storage_read_bytes",
    "storage_write_bytes",
)
KEPT = ("switches", "queued_ns")
NOW = ("memory_bytes", "threads")


class ProcessSample:
    """One process in one sample; ``figures`` has the counters above, None or absent if one could not be read."""

    def __init__(self, key: Key, parent: Optional[Key], rank: int, figures: Dict[str, Optional[int]]) -> None:
        self.key = key
        self.parent = parent
        self.rank = rank
        self.figures = figures


class ProcessUsage:
    """The cumulative counters of every rank; they never decrease."""

    def __init__(self) -> None:
        self._seen: Dict[Key, ProcessSample] = {}
        self._dead: Dict[int, Dict[str, int]] = {}  # of processes that ended, by rank
        self._total: Dict[int, Dict[str, int]] = {}

    def update(self, samples: Iterable[ProcessSample]) -> Dict[int, Dict[str, Optional[int]]]:
        """Counters of every rank so far, from one sample of all processes that are alive.

        A sample must read parents before their children: a child that is reaped in between is then missing from one
        sample, which ``update`` bridges, and never counted twice.
        """
        now = {sample.key: sample for sample in samples}
        for sample in now.values():
            self._fill(sample)
        for sample in self._seen.values():
            if sample.key not in now:
                self._bury(sample, now)
        self._seen = now
        for sample in now.values():
            self._total.setdefault(sample.rank, {})
        return {rank: self._figures(rank) for rank in sorted(self._total)}

    def _fill(self, sample: ProcessSample) -> None:
        """A counter that could not be read this time keeps its value."""
        before = self._seen.get(sample.key)
        for name in INHERITED + KEPT:
            if sample.figures.get(name) is None and before is not None:
                sample.figures[name] = before.figures.get(name)

    def _bury(self, sample: ProcessSample, now: Dict[Key, ProcessSample]) -> None:
        left = KEPT if self._heir(sample, now) else INHERITED + KEPT
        dead = self._dead.setdefault(sample.rank, {})
        for name in left:
            value = sample.figures.get(name)
            if value is not None:
                dead[name] = dead.get(name, 0) + value

    def _heir(self, sample: ProcessSample, now: Dict[Key, ProcessSample]) -> bool:
        """Whether an ancestor in the rank is alive, which has taken over the counters of those that ended below it."""
        parent = sample.parent
        while parent is not None and parent in self._seen and self._seen[parent].rank == sample.rank:
            if parent in now:
                return True
            parent = self._seen[parent].parent
        return False

    def _figures(self, rank: int) -> Dict[str, Optional[int]]:
        living = [sample.figures for sample in self._seen.values() if sample.rank == rank]
        figures: Dict[str, Optional[int]] = {"processes": len(living)}
        for name in NOW:
            values = [value for value in (one.get(name) for one in living) if value is not None]
            figures[name] = sum(values) if values or not living else None
        total = self._total[rank]
        for name in INHERITED + KEPT:
            values = [value for value in (one.get(name) for one in living) if value is not None]
            dead = self._dead.get(rank, {}).get(name)
            if values or dead is not None:
                total[name] = max(total.get(name, 0), sum(values) + (dead or 0))
            figures[name] = total.get(name)
        return figures
