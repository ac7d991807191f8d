"""All-reduce rates from the probe's times, and the latency and bandwidth that explain them.

Names and factors are nccl-tests' (its doc/PERFORMANCE.md); the model is the ring all-reduce, 2(N−1) messages of 1/N
of the data each (Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.statistics import student_t
from allpull.schema.base import tag
from allpull.schema.probes import AllreduceAnswer
from allpull.schema.results import AllreduceResult, CollectiveTime, Interval, RingFit

RESAMPLES = 1000
TAIL = 2.5  # percent on each side of a 95 % interval
FEW_FREEDOM = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # Student's t where ``student_t`` is not exact enough
USUAL_MISFIT = 0.05  # two sizes always fit exactly; an all-reduce that follows the formula does so within this

Floats = NDArray[np.float64]


def reduced(answer: AllreduceAnswer, run: str, hosts: int) -> AllreduceResult:
    """The all-reduce probe's results as rates, with their fit."""
    return AllreduceResult(
        schema=tag("allreduce"),
        run=run,
        ranks=answer.ranks,
        hosts=hosts,
        backend=answer.backend,
        device=answer.device,
        results=[rates(one.size_bytes, one.times_s, answer.ranks) for one in answer.results],
        fit=ring_fit({one.size_bytes: one.times_s for one in answer.results}, answer.ranks),
    )


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
    """Latency and link rate from repetitions by size, with 95 % intervals.

    Non-negative least squares on relative errors, so that small sizes count as much as large ones. An interval
    covers both the scatter of repetitions (by resampling them) and the sizes' deviation from the formula, which no
    number of repetitions reveals (``misfit_reach``). None for one rank, for fewer than two sizes, and where the times
    do not grow with the size: such data give no link rate.
    """
    sizes = np.array(sorted(times_s), dtype=np.float64)
    if ranks < 2 or sizes.size < 2:
        return None
    columns = np.column_stack([np.full(sizes.size, 2.0 * (ranks - 1)), 2 * (ranks - 1) / ranks * sizes])
    samples = [np.asarray(times_s[int(size)], dtype=np.float64) for size in sizes]
    medians = np.array([np.median(sample) for sample in samples])
    coefficients = relative_fit(columns, medians[None])[0]
    if coefficients[1] <= 0:
        return None
    rng = np.random.default_rng(seed)
    resampled = [np.median(rng.choice(one, (RESAMPLES, one.size)), axis=1) for one in samples]
    drawn = np.percentile(relative_fit(columns, np.column_stack(resampled)), [TAIL, 100 - TAIL], axis=0)
    weighted = columns / medians[:, None]
    reach = misfit_reach(weighted, coefficients)
    low, high = np.minimum(drawn[0], coefficients - reach), np.maximum(drawn[1], coefficients + reach)
    latency_s, s_per_byte = map(float, coefficients)
    return RingFit(
        latency_s=Interval(value=latency_s, low=max(0.0, float(low[0])), high=float(high[0])),
        link_bytes_per_s=Interval(
            value=1 / s_per_byte, low=1 / float(high[1]), high=1 / float(low[1]) if low[1] > 0 else None
        ),
        worst_error=float(np.abs(weighted @ coefficients - 1).max()),
    )


def misfit_reach(weighted: Floats, coefficients: Floats) -> Floats:
    """The error of latency and seconds per byte that follows from the sizes' residuals, shape (2,).

    ``weighted`` is the model over the measured times, shape (sizes, 2), so that ``weighted @ coefficients`` is 1 where
    they agree. The covariance is (XᵀX)⁻¹ s² with s² from the residuals; the reach is Student's t with as many degrees
    of freedom as there are sizes beyond two, which is right for independent residuals (Seber & Lee 2003, *Linear
    Regression Analysis*, §3.3, §5.1). Two sizes have no residuals; they are assumed to be off by ``USUAL_MISFIT``.
    """
    freedom = len(weighted) - 2
    squares = float(((weighted @ coefficients - 1) ** 2).sum())
    if freedom == 0:
        variance, quantile = max(USUAL_MISFIT**2, squares), student_t(math.inf)
    else:
        variance, quantile = squares / freedom, FEW_FREEDOM.get(freedom) or student_t(freedom)
    covariance = np.linalg.inv(weighted.T @ weighted) * variance
    reach: Floats = quantile * np.sqrt(np.diag(covariance))
    return reach


def relative_fit(columns: Floats, times_s: Floats) -> Floats:
    """Latency and seconds per byte of each row of ``times_s``, shape (rows, sizes): an array of shape (rows, 2).

    ``columns`` are hops and bytes carried of each size, shape (sizes, 2), or (rows, sizes, 2) where rows differ.

    Weighted least squares by the normal equations. Where one unknown would be negative it is set to 0 and the other is
    fitted alone; of the two choices the one with the smaller error counts.
    """
    weighted = columns / times_s[:, :, None]  # a fit of 1 by relative times
    normal = np.einsum("rsi,rsj->rij", weighted, weighted)
    sums = weighted.sum(axis=1)
    both = np.linalg.solve(normal, sums[:, :, None])[:, :, 0]
    alone = sums / np.einsum("rii->ri", normal)
    errors = ((weighted * alone[:, None, :] - 1) ** 2).sum(axis=1)
    one = np.where((errors[:, :1] < errors[:, 1:]), [1.0, 0.0], [0.0, 1.0]) * alone
    coefficients: Floats = np.where((both >= 0).all(axis=1, keepdims=True), both, one)
    return coefficients
