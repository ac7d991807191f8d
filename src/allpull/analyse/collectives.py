"""Rates of collectives from their measured times, and the latency and bandwidth that explain them.

Names and factors are nccl-tests' (its doc/PERFORMANCE.md); the model is the ring all-reduce, 2(N−1) messages of 1/N
of the data each (Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allpull.schema.results import CollectiveTime, Interval, RingFit

RESAMPLES = 1000
TAIL = 2.5  # percent on each side of a 95 % interval

Floats = NDArray[np.float64]


def rates(size_bytes: int, times_s: Sequence[float], ranks: int) -> CollectiveTime:
    """One size of an all-reduce over ``ranks`` ranks; ``times_s`` holds the maximum over ranks of each repetition.

    >>> rates(8_000_000, [0.1], ranks=4).busbw_bytes_per_s
    120000000.0
    """
    time_s, p95_s = (float(value) for value in np.quantile(times_s, [0.5, 0.95]))
    algbw = size_bytes / time_s
    return CollectiveTime(
        size_bytes=size_bytes,
        repetitions=len(times_s),
        time_s=time_s,
        time_p95_s=p95_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * 2 * (ranks - 1) / ranks,
    )


def ring_fit(times_s: Mapping[int, Sequence[float]], ranks: int, *, seed: int = 0) -> RingFit | None:
    """Latency and link rate from repetitions by size, with 95 % intervals by resampling the repetitions.

    Non-negative least squares on relative errors, so that small sizes count as much as large ones. None for one rank
    or fewer than two sizes, and where the times do not grow with the size: then no link rate can be told.
    """
    sizes = np.array(sorted(times_s), dtype=np.float64)
    if ranks < 2 or sizes.size < 2:
        return None
    columns = np.column_stack([np.full(sizes.size, 2.0 * (ranks - 1)), 2 * (ranks - 1) / ranks * sizes])
    samples = [np.asarray(times_s[int(size)], dtype=np.float64) for size in sizes]
    medians = np.array([np.median(sample) for sample in samples])
    latency_s, s_per_byte = _fit(columns, medians)
    if s_per_byte <= 0:
        return None
    rng = np.random.default_rng(seed)
    drawn = np.array(
        [_fit(columns, np.array([np.median(rng.choice(one, one.size)) for one in samples])) for _ in range(RESAMPLES)]
    )
    low, high = np.percentile(drawn, [TAIL, 100 - TAIL], axis=0)
    error = np.abs(columns @ np.array([latency_s, s_per_byte]) - medians) / medians
    return RingFit(
        latency_s=Interval(value=latency_s, low=min(float(low[0]), latency_s), high=max(float(high[0]), latency_s)),
        link_bytes_per_s=Interval(
            value=1 / s_per_byte,
            low=min(1 / float(high[1]), 1 / s_per_byte) if high[1] > 0 else None,
            high=max(1 / float(low[1]), 1 / s_per_byte) if low[1] > 0 else None,
        ),
        worst_error=float(error.max()),
    )


def _fit(columns: Floats, times_s: Floats) -> tuple[float, float]:
    """Non-negative weighted least squares in two unknowns: where one would be negative it is 0."""
    weighted = columns / times_s[:, None]
    both, *_ = np.linalg.lstsq(weighted, np.ones(times_s.size), rcond=None)
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = weighted.sum(axis=0) / (weighted**2).sum(axis=0)
    errors = ((weighted * alone - 1) ** 2).sum(axis=0)
    return (float(alone[0]), 0.0) if errors[0] < errors[1] else (0.0, float(alone[1]))
