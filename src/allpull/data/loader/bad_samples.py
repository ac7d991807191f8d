"""Bad samples of one part on one rank: counted and listed for the report."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from allpull.data.loader.order import Indices
from allpull.errors import BadInput
from allpull.rundir import layout

MAX_LISTED = 10_000  # if everything is bad, the counts suffice
SKIPPED = -1  # instead of a record number
LEFT_OUT, REPLACED, BY_PILLOW = "left out", "another in its place", "decoded by Pillow"
PARTS = {"train": "training", "test": "test"}


@dataclass(frozen=True, slots=True)
class BadSample:
    """Record ``record`` of the pack, in ``epoch``: the fault, and how it was handled.

    ``instead`` is the record that replaced it.
    """

    epoch: int
    record: int
    reason: str
    done: str
    instead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Samples loaded, and of these: left out, replaced by another record, decoded by Pillow."""

    loaded: int = 0
    left_out: int = 0
    replaced: int = 0
    by_pillow: int = 0


@dataclass(slots=True)
class BadSamples:
    """A thread-safe list: ``counts`` by (reason, handling), and the first ``MAX_LISTED`` samples."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[BadSample] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)
    _returned: int = 0
    _counts: Counts = field(default_factory=Counts)

    def add(self, remark: BadSample) -> None:
        """Count and list one."""
        with self._lock:
            self.counts[remark.reason, remark.done] += 1
            if len(self.listed) < MAX_LISTED:
                self.listed.append(remark)

    def count_batch(self, requested: Indices, loaded: Indices, counted: int) -> int:
        """Count a batch: instead of the records ``requested`` [n] it has ``loaded`` [n], or ``SKIPPED``.

        ``counted`` is n, or 0 for a borrowed sample. Returns the number of samples left out or replaced.
        """
        if not counted:
            return 0
        left_out = int(np.count_nonzero(loaded == SKIPPED))
        lost = int(np.count_nonzero(loaded != requested))
        one = self._counts
        self._counts = Counts(
            loaded=one.loaded + counted,
            left_out=one.left_out + left_out,
            replaced=one.replaced + lost - left_out,
        )
        return lost

    def totals(self) -> Counts:
        """The counts so far."""
        with self._lock:
            by_pillow = sum(count for (_, done), count in self.counts.items() if done == BY_PILLOW)
        one = self._counts
        return Counts(loaded=one.loaded, left_out=one.left_out, replaced=one.replaced, by_pillow=by_pillow)

    def new_entries(self) -> list[BadSample]:
        """The samples listed since the previous call."""
        with self._lock:
            entries = self.listed[self._returned :]
            self._returned = len(self.listed)
        return entries

    def warn(self, where: str) -> None:
        """Warn about all bad samples, where no training reports them per epoch (``train.bad_sample_report``)."""
        with self._lock:
            common = ", ".join(f"{count} × {reason}: {done}" for (reason, done), count in self.counts.most_common(5))
        if common:
            warnings.warn(f"{where}: bad samples: {common}", stacklevel=2)


def too_many(lost: int, samples: int, limit: float, part: str, *, so_far: bool = False) -> BadInput:
    """The error of an epoch that lost more than the share ``limit`` of the ``samples`` of a part.

    ``so_far``: on one rank, before the end of the epoch.
    """
    count = f"{lost:,}{' or more' * so_far} of {samples:,} {PARTS[part]} samples"
    return BadInput(
        f"{count} could not be decoded, more than data.odd_limit = {limit:.3g}",
        hint=f"{layout.BAD_SAMPLES} in the run directory lists them, and allpull pack verify names damaged ones;"
        " or increase data.odd_limit to train without them",
    )
