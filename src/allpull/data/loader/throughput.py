"""The loader without a model: how many samples a second it makes when nobody computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from allpull.data.loader.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What was loaded, and in how long; the first batch, which waits for threads to start, is not in it."""

    batches: int
    samples: int
    wall_s: float

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second; None where there was but one batch."""
        return self.samples / self.wall_s if self.samples and self.wall_s > 0 else None


def drain(batches: Iterable[Batch], clock: Callable[[], float] = time.perf_counter) -> Drained:
    """Take all ``batches`` and do nothing with them."""
    started, count, samples = None, 0, 0
    for batch in batches:
        if started is None:
            started = clock()
            continue
        count, samples = count + 1, samples + batch.samples
    return Drained(batches=count, samples=samples, wall_s=0.0 if started is None else clock() - started)
