"""What became of samples that were not as the others: counted and listed, for whoever loads to say."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from allpull.data.loader.order import Indices
from allpull.errors import BadInput

MAX_LISTED = 10_000  # of a pack in which everything is odd, the counts are enough
SKIPPED = -1  # in the place of a record's number
LEFT_OUT, REPLACED, BY_PILLOW = "left out", "another in its place", "decoded by Pillow"
PARTS = {"train": "to train on", "test": "to test on"}


@dataclass(frozen=True, slots=True)
class Remark:
    """Record ``record`` of the pack, in ``epoch``: what was odd, and what was done about it.

    ``instead`` is the record that was shown in its place.
    """

    epoch: int
    record: int
    reason: str
    done: str
    instead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Samples that were taken, and of these: left out, shown by another in their place, decoded by Pillow."""

    seen: int = 0
    left_out: int = 0
    replaced: int = 0
    by_pillow: int = 0


@dataclass(slots=True)
class Odd:
    """A list that many threads write: ``counts`` by (reason, what was done), and the first ``MAX_LISTED`` remarks."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Remark] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)
    _given: int = 0
    _taken: Counts = field(default_factory=Counts)

    def note(self, remark: Remark) -> None:
        """Count and list one."""
        with self._lock:
            self.counts[remark.reason, remark.done] += 1
            if len(self.listed) < MAX_LISTED:
                self.listed.append(remark)

    def take(self, wanted: Indices, shown: Indices, counted: int) -> int:
        """A batch has been taken: of its records ``wanted`` [n] it has ``shown`` [n], or ``SKIPPED``.

        ``counted`` is n, or 0 for what is borrowed. Returns how many have no record of their own in it.
        """
        if not counted:
            return 0
        left_out = int(np.count_nonzero(shown == SKIPPED))
        lost = int(np.count_nonzero(shown != wanted))
        one = self._taken
        self._taken = Counts(
            seen=one.seen + counted,
            left_out=one.left_out + left_out,
            replaced=one.replaced + lost - left_out,
        )
        return lost

    def taken(self) -> Counts:
        """What was taken so far."""
        with self._lock:
            by_pillow = sum(count for (_, done), count in self.counts.items() if done == BY_PILLOW)
        one = self._taken
        return Counts(seen=one.seen, left_out=one.left_out, replaced=one.replaced, by_pillow=by_pillow)

    def news(self) -> list[Remark]:
        """The remarks that were listed since the call before."""
        with self._lock:
            found = self.listed[self._given :]
            self._given = len(self.listed)
        return found

    def say(self, where: str) -> None:
        """Warn of all that was noted: for who only loads; a training tells it by epochs (``train.odd``)."""
        with self._lock:
            common = ", ".join(f"{count} × {reason}: {done}" for (reason, done), count in self.counts.most_common(5))
        if common:
            warnings.warn(f"{where}: odd samples: {common}", stacklevel=2)


def too_many(lost: int, samples: int, limit: float, part: str, *, so_far: bool = False) -> BadInput:
    """The error of an epoch that has lost more than the share ``limit`` of the ``samples`` of a part.

    ``so_far``: on one rank, before the end.
    """
    found = f"{lost:,}{' or more' * so_far} of {samples:,} samples {PARTS[part]}"
    return BadInput(
        f"{found} could not be decoded, more than data.odd_limit = {limit:.3g}",
        hint="job/logs/odd-*.jsonl in the run directory lists them, and allpull pack verify names what is damaged;"
        " or set data.odd_limit higher, to train without them",
    )
