"""Measure the loader without a model: samples per second while nothing computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from allpull.data.loader.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What was loaded, and the time; without the first batch, which waits for threads to start."""

    batches: int
    samples: int
    wall_s: float

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second; None with only one batch."""
        return self.samples / self.wall_s if self.samples and self.wall_s > 0 else None


def drain(batches: Iterable[Batch], clock: Callable[[], float] = time.perf_counter) -> Drained:
    """Consume all ``batches`` and time them."""
    started, count, samples = None, 0, 0
    for batch in batches:
        if started is None:
            started = clock()
            continue
        count, samples = count + 1, samples + batch.samples
    return Drained(batches=count, samples=samples, wall_s=0.0 if started is None else clock() - started)
