"""Add up what the processes of a rank did, so that nothing is lost or counted twice when one of them ends.

When a process is reaped, Linux adds its I/O and its CPU time to its parent's (``wait_task_zombie`` in
kernel/exit.c; ``children_user`` of proc_pid_stat(5)). So a loader worker that ended is in its parent's figures
from then on, and keeping its last value as well would count it twice. Where no ancestor in the rank is left to
have reaped it, its last value is kept instead. What a parent does not take over (context switches) is always kept.
"""

from __future__ import annotations

from typing import Dict, Iterable, Optional, Tuple

Key = Tuple[int, float]
"""Process id and start time: a process id that is used again is another process."""

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


class Sight:
    """One process at one look; ``figures`` has the names above, None or absent where it could not be read."""

    def __init__(self, key: Key, parent: Optional[Key], rank: int, figures: Dict[str, Optional[int]]) -> None:
        self.key = key
        self.parent = parent
        self.rank = rank
        self.figures = figures


class Ledger:
    """The cumulative figures of every rank; they never fall."""

    def __init__(self) -> None:
        self._seen: Dict[Key, Sight] = {}
        self._dead: Dict[int, Dict[str, int]] = {}  # what ended processes leave, by rank
        self._total: Dict[int, Dict[str, int]] = {}

    def update(self, sights: Iterable[Sight]) -> Dict[int, Dict[str, Optional[int]]]:
        """Figures of every rank seen so far, from one look at all processes that live now.

        A look must read parents before their children: a child that is reaped in between is then missing for one
        look, which the ledger bridges, and never in both.
        """
        now = {sight.key: sight for sight in sights}
        for sight in now.values():
            self._fill(sight)
        for sight in self._seen.values():
            if sight.key not in now:
                self._bury(sight, now)
        self._seen = now
        for sight in now.values():
            self._total.setdefault(sight.rank, {})
        return {rank: self._figures(rank) for rank in sorted(self._total)}

    def _fill(self, sight: Sight) -> None:
        """A figure that could not be read this time is what it was."""
        before = self._seen.get(sight.key)
        for name in INHERITED + KEPT:
            if sight.figures.get(name) is None and before is not None:
                sight.figures[name] = before.figures.get(name)

    def _bury(self, sight: Sight, now: Dict[Key, Sight]) -> None:
        left = KEPT if self._heir(sight, now) else INHERITED + KEPT
        dead = self._dead.setdefault(sight.rank, {})
        for name in left:
            value = sight.figures.get(name)
            if value is not None:
                dead[name] = dead.get(name, 0) + value

    def _heir(self, sight: Sight, now: Dict[Key, Sight]) -> bool:
        """Whether an ancestor in the rank lives on; those between ended too, and handed on what they took over."""
        parent = sight.parent
        while parent is not None and parent in self._seen and self._seen[parent].rank == sight.rank:
            if parent in now:
                return True
            parent = self._seen[parent].parent
        return False

    def _figures(self, rank: int) -> Dict[str, Optional[int]]:
        living = [sight.figures for sight in self._seen.values() if sight.rank == rank]
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
