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
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.collectives.reductions import with_meetings
from allpull.analyse.collectives.traced_buckets import BucketWindows, bucket_sizes
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording.chosen_steps import ChosenSteps
from allpull.replay.window import Reductions
from allpull.rundir.read.buckets import counts
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
    """How long before the arrival of its rank each bucket was ready, shape (reductions, buckets, ranks), ≥ 0.

    ``missing`` counts unknown reductions of ranks; they have medians over the others of their rank.
    """

    seconds: Floats
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeadTimes:
    """How long before the arrival of its rank each bucket was ready, one reduction of a rank after the other.

    Arrays with an entry per reduction of a rank and network, in order of ``rank``, ``step``, ``meeting`` (the reduction
    of the step) and ``network``; its ``buckets`` are in ``lead_ns`` from ``first`` on.
    """

    rank: Ints
    step: Ints
    meeting: Ints
    network: Ints
    first: Ints
    buckets: Ints
    lead_ns: Ints

    def of(self, rows: Ints, network: int) -> LeadTimes:
        """Those of ``network`` whose entry in ``rows`` is not negative; the entry is then the ``step``."""
        kept = (rows >= 0) & (self.network == network)
        entries = ("rank", "meeting", "network", "first", "buckets")
        return replace(self, step=rows[kept], **{name: getattr(self, name)[kept] for name in entries})


def all_leads(ready: pl.DataFrame, listed: pl.DataFrame, steps: ChosenSteps) -> LeadTimes:
    """How long before the arrival of its rank each bucket was ready, in ``steps``.

    ``ready``: columns of ``rundir.read.buckets.SCHEMA``; ``listed``: of ``rundir.read.reductions.SCHEMA``, of these
    steps; both with moments of each rank's own clock, sorted by rank and step.
    """
    inside = steps.hold(ready["step"])
    if listed.is_empty():
        return _alone(ready, inside.to_numpy())
    ready = ready.filter(inside)
    keys = ["rank", "step", "meeting", "network"]
    arrived = pl.col("arrival_ns").max().over("rank", "step", "meeting")
    several = with_meetings(listed).select(*keys, arrived.alias("arrived_ns"), "ready_ns")
    apart = ready.join(listed.select("rank", "step").unique(), on=["rank", "step"], how="anti", maintain_order="left")
    zero = pl.lit(0, dtype=pl.Int64)
    alone = apart.select(
        "rank",
        "step",
        zero.alias("meeting"),
        zero.alias("network"),
        pl.col("ready_ns").list.last().alias("arrived_ns"),
        "ready_ns",
    )
    place = pl.int_ranges(pl.col("ready_ns").list.len().cast(pl.Int64)).alias("bucket")
    each = pl.concat([alone, several.cast(alone.schema)]).with_columns(place).explode("bucket", "ready_ns")
    ordered = each.sort(*keys, "bucket")
    first = np.flatnonzero(ordered["bucket"].to_numpy() == 0)
    return LeadTimes(
        **{name: ordered[name].to_numpy()[first] for name in keys},
        first=first,
        buckets=np.diff(np.append(first, ordered.height)),
        lead_ns=(ordered["arrived_ns"] - ordered["ready_ns"]).to_numpy(),
    )


def _alone(ready: pl.DataFrame, inside: NDArray[np.bool_]) -> LeadTimes:
    """Of steps with one reduction, which begins when their last bucket was ready; ``inside``: of these rows."""
    every = counts(ready)
    buckets, ready_ns = every[inside], ready["ready_ns"].explode().to_numpy()[np.repeat(inside, every)]
    ends = np.cumsum(buckets)
    lead_ns = np.repeat(ready_ns[ends - 1], buckets)
    lead_ns -= ready_ns
    return LeadTimes(
        rank=ready["rank"].to_numpy()[inside],
        step=ready["step"].to_numpy()[inside],
        meeting=np.broadcast_to(np.int64(0), ends.shape),
        network=np.broadcast_to(np.int64(0), ends.shape),
        first=ends - buckets,
        buckets=buckets,
        lead_ns=lead_ns,
    )


def leads(inside: LeadTimes, worked_s: Floats, least: int = 2) -> Leads | None:
    """The leads of one network; None where too few are known, or they have fewer than ``least`` buckets.

    Args:
        inside: of the network, with rows of the reductions for steps.
        worked_s: from the begin of the step to the arrival, shape (reductions, ranks).
        least: 2, since a single moment is the arrival.
    """
    buckets = int(np.bincount(inside.buckets, minlength=1).argmax())
    if buckets < least:
        return None
    kept = inside.buckets == buckets
    row, rank = inside.step[kept], inside.rank[kept]
    lead_s = _rows(inside.lead_ns, inside.first[kept], buckets) / NS_PER_S
    sound = lead_s[:, 0] <= np.maximum(worked_s[row, rank], 0)  # no gradient is ready before its step begins
    if not sound.all():  # else copies of as much as all moments of a window
        row, rank, lead_s = row[sound], rank[sound], lead_s[sound]
    known = np.zeros(worked_s.shape, dtype=np.bool_)
    known[row, rank] = True
    missing = int((~known).sum())
    if missing > MISSING_SHARE * known.size or not known.any(axis=0).all():
        return None
    shape = (worked_s.shape[1], worked_s.shape[0], buckets)
    if known.all() and (np.diff(rank * worked_s.shape[0] + row) > 0).all():
        of_rank = lead_s.reshape(shape)  # they are all there, and in order
    else:
        of_rank = np.zeros(shape)
        of_rank[rank, row] = lead_s
    for one in np.flatnonzero(~known.all(axis=0)):
        of_rank[one, ~known[:, one]] = np.median(of_rank[one, known[:, one]], axis=0)
    most_s = np.maximum(worked_s, 0)[:, None, :]
    return Leads(seconds=np.minimum(of_rank.transpose(1, 2, 0), most_s, order="C"), missing=missing)


def _rows(values: Ints, first: Ints, count: int) -> Ints:
    """``count`` values from each of ``first`` on, as rows."""
    if first.size and (np.diff(first) == count).all():
        return values[first[0] : first[0] + first.size * count].reshape(-1, count)
    rows: Ints = values[first[:, None] + np.arange(count)]
    return rows


def sizes(events: Mapping[int, EventLog], step: int, buckets: int | None, network: int = 0) -> Ints | None:
    """Bytes of ``buckets`` buckets as DDP cut a network's at ``step``; None where they are unknown or impossible.

    Where ``buckets`` is None, as one: the sum over all of them.
    """
    size_bytes = bucket_sizes(events.values(), step, buckets, network)
    if not size_bytes or min(size_bytes) < 0 or sum(size_bytes) >= 2**53:
        return None
    return np.array([sum(size_bytes)] if buckets is None else size_bytes, dtype=np.int64)


def single(events: Iterable[EventLog], network: int = 0) -> bool:
    """Whether DDP reduces all gradients of a network in one bucket: then the arrival is when it was ready."""
    cuts = [[one.sizes_bytes for one in log.buckets if one.network == network][-1:] for log in events]
    known = [sizes_bytes for of_log in cuts for sizes_bytes in of_log]
    return bool(known) and all(len(sizes_bytes) == 1 for sizes_bytes in known)


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
    tried, missed_s = _missed_s(ready_s, ended_s, weights)
    means_s = missed_s.mean(axis=1)
    best = int(np.argmin(means_s))
    return float(tried[best]), float(means_s[best])


def _missed_s(ready_s: Floats, ended_s: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Some scales, and by how much each misses the end of every reduction, (scales, reductions)."""
    scale, after = _scales(ready_s, ended_s, weights)
    tried = np.quantile(scale, MIXES)
    return tried, np.array([np.abs((ready_s + one * after).max(axis=1) - ended_s) for one in tried])


def missed_by_mix_s(ready_s: Floats, ended_s: Floats, size_bytes: Floats) -> Floats:
    """By how much each of ``MIXES``, with some scales, misses the end of every reduction, (reductions, mixes, scales).

    Where a lane is busy from its first bucket to its last, all mixes miss it equally: such ends show no latency.
    """
    by_bytes, equal = _shares(size_bytes), np.full(size_bytes.size, 1 / size_bytes.size)
    each = [_missed_s(ready_s, ended_s, (1 - mix) * by_bytes + mix * equal)[1] for mix in MIXES]
    return np.stack(each).transpose(2, 0, 1)


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
