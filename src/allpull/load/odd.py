"""What became of samples that were not as the others: counted, listed, said."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

MAX_LISTED = 10_000  # of a pack in which everything is odd, the counts are enough


@dataclass(frozen=True, slots=True)
class Remark:
    """Record ``record`` of the pack, in ``epoch``: what was odd, and what was done about it."""

    epoch: int
    record: int
    reason: str
    done: str


@dataclass(slots=True)
class Odd:
    """A list that many threads write: ``counts`` by (reason, what was done), and the first ``MAX_LISTED`` remarks."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Remark] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)
    _said: int = 0

    def note(self, remark: Remark) -> None:
        """Count and list one."""
        with self._lock:
            self.counts[remark.reason, remark.done] += 1
            if len(self.listed) < MAX_LISTED:
                self.listed.append(remark)

    def say(self, where: str) -> None:
        """Warn of what has come since the last time."""
        with self._lock:
            total = self.counts.total()
            news, self._said = total - self._said, total
            common = ", ".join(f"{count} × {reason}: {done}" for (reason, done), count in self.counts.most_common(5))
        if news:
            warnings.warn(f"{where}: {news} odd samples; in all {common}", stacklevel=3)
