"""Solve how long each bucket of gradients took to reduce, from when it was ready and when the last one was done.

Buckets follow each other on one lane (``replay.window``), so the last one ends at max_j (R_j + Σ_(b≥j) seconds_b) with
R_j the moment at which the last rank had bucket j ready. Seconds are assumed proportional to weights w_b. With D the
first moment at which a rank was done, the scale s of a step has a closed form::

    seconds_b = s·w_b,    s = min_j (D − R_j) / W_j,    W_j = Σ_(b≥j) w_b

This is an upper bound: a rank that is slow in backward may have hidden a faster lane. So s is also at most the usual
scale, the one value for all steps that explains their ends best; if the last bucket ended later than that, the excess
is its own. D is always met.

Weights are what a profiler measured, where there is one, and the usual scale is at most the measured one. Otherwise
they are bytes and a latency (α and β of Hockney 1994, Parallel Computing 20), mixed so that the usual scale explains
the ends of steps best. The buckets with whose moments the ends move distinguish a busy lane from a rank that is slow in
backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.collectives.traced_buckets import BucketWindows, bucket_sizes
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording.calls import Moments, in_window
from allpull.replay.window import Reductions
from allpull.rundir.read.events import EventLog
from allpull.units import NS_PER_S

Ints = NDArray[np.int64]
MISSING_SHARE = 0.1  # of rank-steps whose buckets are unknown: with more, medians would replace the run
LEAST_WEIGHT = 1e-6  # of the sum over buckets: every bucket takes some time
FEW = 8  # reductions: fewer do not show the latency
MIXES = np.linspace(0, 1, 21)  # from bytes alone to latency alone
BETTER = 0.99  # of the error with bytes alone: a smaller improvement does not justify a latency
EXACT_S = 1e-6  # an error below this comes from time stamps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leads:
    """How long before the arrival of its rank each bucket was ready, shape (steps, buckets, ranks), ≥ 0.

    Meaningless in steps without a reduction. ``missing`` counts unknown rank-steps; they have medians over the other
    steps of their rank.
    """

    seconds: Floats
    missing: int


def leads(ready: pl.DataFrame, steps: Ints, recorded: Moments) -> Leads | None:
    """The leads in consecutive ``steps``; None where too few are known, or there is one moment per step.

    ``ready``: columns of ``rundir.read.buckets.SCHEMA``, by rank, step and bucket; ``of``: the moments of ``steps``.
    """
    inside = in_window(ready, steps)
    bucket = inside["bucket"].to_numpy()
    starts = np.flatnonzero(bucket == 0)
    counts = np.diff(np.append(starts, bucket.size))
    buckets = int(np.bincount(counts, minlength=1).argmax())
    if buckets < 2:  # a single moment is the arrival
        return None
    starts = starts[counts == buckets]
    row, rank = inside["step"].to_numpy()[starts] - steps[0], inside["rank"].to_numpy()[starts]
    moments_ns = inside["ready_ns"].to_numpy()
    is_even = starts.size * buckets == moments_ns.size
    moments_ns = moments_ns.reshape(-1, buckets) if is_even else moments_ns[starts[:, None] + np.arange(buckets)]
    lead_s = (moments_ns[:, -1:] - moments_ns) / NS_PER_S
    worked_s = np.maximum(recorded.arrival_s - recorded.begin_s, 0)
    sound = lead_s[:, 0] <= worked_s[row, rank]  # no gradient is ready before its step begins
    row, rank, lead_s = row[sound], rank[sound], lead_s[sound]
    known = np.zeros(worked_s.shape, dtype=np.bool_)
    known[row, rank] = True
    missing = int((~known[recorded.reduces]).sum())
    if missing > MISSING_SHARE * known[recorded.reduces].size or not known.any(axis=0).all():
        return None
    of_rank = np.zeros((worked_s.shape[1], worked_s.shape[0], buckets))
    of_rank[rank, row] = lead_s
    for one in np.flatnonzero(~known.all(axis=0)):
        of_rank[one, ~known[:, one]] = np.median(of_rank[one, known[:, one]], axis=0)
    return Leads(seconds=np.minimum(of_rank.transpose(1, 2, 0), worked_s[:, None, :], order="C"), missing=missing)


def sizes(events: Mapping[int, EventLog], step: int, buckets: int | None) -> Ints | None:
    """Bytes of ``buckets`` buckets as DDP cut them at ``step``; None where they are unknown or impossible.

    ``buckets`` None: of all of them together, as one.
    """
    size_bytes = bucket_sizes(events.values(), step, buckets)
    if not size_bytes or min(size_bytes) < 0 or sum(size_bytes) >= 2**53:
        return None
    return np.array([sum(size_bytes)] if buckets is None else size_bytes, dtype=np.int64)


def single(events: Iterable[EventLog]) -> bool:
    """Whether DDP reduces all gradients in one bucket: then the arrival is when it was ready."""
    cuts = [log.buckets[-1].sizes_bytes for log in events if log.buckets]
    return bool(cuts) and all(len(sizes_bytes) == 1 for sizes_bytes in cuts)


def solve_reductions(
    stand_s: Floats, leave_s: Floats, lead_s: Floats, size_bytes: Ints | None, windows: BucketWindows | None = None
) -> Reductions:
    """Reductions whose last bucket ends when it did.

    Args:
        stand_s: when each rank arrived with its last gradient, shape (reductions, ranks).
        leave_s: when it had the reduced gradients back, the same shape.
        lead_s: how long before its arrival it had each bucket ready, shape (reductions, buckets, ranks).
        size_bytes: of the buckets, shape (buckets,), or None.
        windows: what a profiler measured of them, or None.
    """
    ready_s = (stand_s[:, None, :] - lead_s).max(axis=2)
    ended_s = np.maximum(leave_s.min(axis=1), ready_s[:, -1])
    measured_s = None if windows is None else _durations_s(windows.times, lead_s.shape[1])
    weights = _fitted(ready_s, ended_s, size_bytes) if measured_s is None else _shares(measured_s)
    scale, after = _scales(ready_s, ended_s, weights)
    usual, _ = _usual(ready_s, ended_s, weights)
    scale = np.minimum(scale, usual if measured_s is None else min(usual, float(measured_s.sum())))
    seconds: Floats = scale[:, None] * weights
    before_s = (ready_s[:, :-1] + scale[:, None] * (after[:-1] - weights[-1])).max(axis=1, initial=-np.inf)
    seconds[:, -1] = np.maximum(ended_s - np.maximum(before_s, ready_s[:, -1]), 0)
    return Reductions(
        lead_s=lead_s,
        seconds=seconds,
        tail_s=np.maximum(leave_s - ended_s[:, None], 0),
        size_bytes=size_bytes,
    )


def _scales(ready_s: Floats, ended_s: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The most that the scale of each step can be, shape (reductions,), and W, shape (buckets,)."""
    after = np.cumsum(weights[::-1])[::-1]
    scales = np.maximum(ended_s[:, None] - ready_s, 0) / after
    return scales.min(axis=1, initial=np.inf), after


def _usual(ready_s: Floats, ended_s: Floats, weights: Floats) -> tuple[float, float]:
    """The scale that misses the ends of all steps least, and its mean error."""
    scale, after = _scales(ready_s, ended_s, weights)
    tried = np.quantile(scale, MIXES)
    missed_s = [float(np.abs((ready_s + one * after).max(axis=1) - ended_s).mean()) for one in tried]
    best = int(np.argmin(missed_s))
    return float(tried[best]), missed_s[best]


def _fitted(ready_s: Floats, ended_s: Floats, size_bytes: Ints | None) -> Floats:
    """Weights from bytes and latency, shape (buckets,), that sum to 1."""
    buckets = ready_s.shape[1]
    equal = np.full(buckets, 1 / buckets)
    if size_bytes is None or not size_bytes.any():
        return equal
    by_bytes = _shares(size_bytes.astype(np.float64))
    if buckets == 1 or ended_s.size < FEW:
        return by_bytes
    mixed = [(1 - mix) * by_bytes + mix * equal for mix in MIXES]
    missed_s = [_usual(ready_s, ended_s, weights)[1] for weights in mixed]
    best = int(np.argmin(missed_s))
    return mixed[best] if missed_s[best] < BETTER * missed_s[0] - EXACT_S else by_bytes


def _shares(parts: Floats) -> Floats:
    share: Floats = np.maximum(parts / parts.sum(), LEAST_WEIGHT)
    share /= share.sum()
    return share


def _durations_s(times: pl.DataFrame, buckets: int) -> Floats | None:
    """Median seconds of each bucket over profiler windows with ``buckets`` of them; None where one has none.

    For each step the minimum over ranks counts: ranks that arrived before the last one measured their waiting, too.
    """
    whole = times.filter(pl.len().over("rank", "step") == buckets)
    lasted = (pl.col("end_ns") - pl.col("start_ns")).min()
    by_step = whole.group_by("step", "bucket").agg(lasted.alias("ns")).drop_nulls()
    by_bucket = by_step.group_by("bucket").agg(pl.col("ns").median()).sort("bucket")
    transfer_s = by_bucket["ns"].to_numpy().astype(np.float64) / NS_PER_S
    return transfer_s if transfer_s.size == buckets and (transfer_s > 0).all() else None
