"""Lateness: what the slowest of N ranks adds to a step in which all wait for each other.

The work of rank r in step i is taken as y_ri = μ + u_r + h_(host of r, i) + e_ri + c_i: what a rank always takes longer
(persistent), what all ranks of a host, or of the job, take longer in one step (common), and what remains (transient).
The job waits for the largest of them, so lateness is E_i[max_r y_ri] − μ, and c_i drops out.

- Up to the M ranks that were measured nothing is modelled: the mean over steps of the maximum over all subsets of N of
  the M ranks, by order statistics.
- Beyond them the M ranks stay, with u_r as measured, and N − M new ranks are drawn: u from a Normal distribution with
  the spread of the measured ranks, e from the pooled residuals with a fitted tail (``tails``). Hosts are the
  independent unit of h: the maximum over hosts is that of h plus the maximum over a host's ranks.

u_r is the column effect of a two-way median polish (Tukey 1977, ch. 11). How much of the variation is common is the
correlation between ranks, of one host and of different ones; a common part is removed from the residuals as its best
linear prediction, which leaves the residuals of independent ranks as they are, where subtracting the mean of two ranks
would halve their variance.

The largest of 16, 128, 1,024 and 16,384 Normal values is 1.77, 2.59, 3.25 and 3.98 σ above the mean, that of N
exponential ones θ · (1/2 + … + 1/N). Ranks are assumed to meet once per step; a step with several synchronised segments
has one such term per segment, and they add up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allpull.predict.terms import tails
from allpull.predict.terms.tails import Floats

BLOCK = 10  # steps that are resampled together
FEW_RANKS = 4  # with fewer, one slow rank is a faulty one or an ordinary one: the data cannot tell
FEW_RANK_STEPS = 200  # 10 values above the 95 % quantile
MOST_POOLED = 5000  # rank-steps per draw
GROUPS = 32  # of steps: the distribution of their maximum over the measured ranks
SPREAD_SHARE = 0.005  # of a rank's work: between the median (0.09 %) and p90 (0.71 %) of how MLPerf entries repeat
SPREAD_WEIGHT = 1.0  # ranks that this prior counts for
SLOW_SHARE = 0.01  # of a rank's work: a rank is not slow by less
SLOW_DEVIATIONS = 3.0
MAD_TO_SD = 1.4826  # of a Normal distribution

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Polished:
    """Parts of work: ``middle`` + ``common`` (steps,) + ``persistent`` (ranks,) + ``transient`` (steps, ranks)."""

    middle: float
    persistent: Floats
    common: Floats
    transient: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lateness:
    """Lateness of measured ranks and of new ones; arrays of one draw belong together along the first axis.

    ``work_s`` (draws,): the mean work of a rank, which lateness is above. ``times_drawn`` (draws, steps): the resampled
    steps. ``ordered_s`` (steps, ranks): work of each step, sorted. ``measured_max_s`` (draws, groups): the maximum over
    the measured ranks, without what is common, above ``work_s``. ``new_s`` and ``host_s`` (draws, levels): tables of a
    new rank and of a host's own part. ``shape`` (draws,): of the tail. ``reasons``: why it is not fully
    measured. ``balanced``: the same with no rank persistently slow; None: no rank is.
    """

    work_s: Floats
    times_drawn: Floats
    ordered_s: Floats
    measured_max_s: Floats
    new_s: Floats
    host_s: Floats
    shape: Floats
    reasons: tuple[str, ...] = ()
    balanced: Lateness | None = None

    @property
    def ranks(self) -> int:
        """How many ranks were measured."""
        return int(self.ordered_s.shape[1])

    def seconds(self, ranks: int, hosts: int) -> Floats:
        """Lateness with ``ranks`` on ``hosts``, s per step, (draws,).

        A tail without a mean (shape ≥ 1) counts with the median of its maximum.
        """
        if ranks <= self.ranks:
            of_subsets = self.ordered_s @ _subset_weights(self.ranks, ranks)
            above_s: Floats = self.times_drawn @ of_subsets / self.times_drawn.sum(axis=1) - self.work_s
            return above_s
        per_host = ranks / hosts
        if self.host_s.any():
            of_host = tails.added(tails.maximum_table(self.new_s, per_host), self.host_s)
            new = tails.maximum(of_host, (ranks - self.ranks) / per_host)
        else:
            new = tails.maximum(self.new_s, ranks - self.ranks)
        equal = np.full(self.measured_max_s.shape[1], 1 / self.measured_max_s.shape[1])
        mean_s = tails.mean_of_larger(self.measured_max_s, equal, new, tails.WEIGHTS)
        middle_s = np.maximum(self.measured_max_s.mean(axis=1), tails.median(new))
        return np.where(self.shape < 1, mean_s, middle_s)

    def times(self, factor: float) -> Lateness:
        """The same with all times ``factor`` times as long."""
        return replace(
            self,
            work_s=self.work_s * factor,
            ordered_s=self.ordered_s * factor,
            measured_max_s=self.measured_max_s * factor,
            new_s=self.new_s * factor,
            host_s=self.host_s * factor,
            balanced=None if self.balanced is None else self.balanced.times(factor),
        )


def polish(work: Floats, rounds: int = 20) -> Polished:
    """Two-way median polish of ``work`` (steps, ranks)."""
    transient = work.astype(np.float64)
    common, persistent = np.zeros(work.shape[0]), np.zeros(work.shape[1])
    for _ in range(rounds):
        by_rank = np.median(transient, axis=0)
        transient = transient - by_rank
        by_step = np.median(transient, axis=1)
        transient = transient - by_step[:, None]
        common, persistent = common + by_step, persistent + by_rank
        if max(np.abs(by_rank).max(), np.abs(by_step).max()) <= 1e-12 * np.abs(work).max():
            break
    middle = float(np.median(common) + np.median(persistent))
    return Polished(
        middle=middle,
        persistent=persistent - np.median(persistent),
        common=common - np.median(common),
        transient=transient,
    )


def block_resamples(steps: int, draws: int, rng: np.random.Generator, block: int = BLOCK) -> Indices:
    """Steps drawn in blocks of neighbours on the closed circle, (draws, steps) (Politis & Romano 1992)."""
    blocks = -(-steps // block)
    begins = rng.integers(steps, size=(draws, blocks, 1))
    drawn: Indices = ((begins + np.arange(min(block, steps))) % steps).reshape(draws, -1)[:, :steps]
    return drawn.astype(np.intp)


def fitted(work: Floats, host_of: Indices, resamples: Indices, rng: np.random.Generator) -> Lateness:
    """Lateness of ``work`` (steps, ranks): seconds of each rank's own work between two synchronisations.

    Steps with an evaluation or a checkpoint do not belong in it, nor does time blocked in collectives, which is the
    lateness of others.

    Args:
        work: s, none negative.
        host_of: (ranks,), the number of each rank's host.
        resamples: (draws, n), the steps of each draw, as ``block_resamples`` makes them.
        rng: of what the data cannot tell.

    Raises:
        ValueError: there are fewer than two steps, or shapes differ.
    """
    if work.ndim != 2 or work.shape[0] < 2 or host_of.shape != work.shape[1:]:
        raise ValueError(
            f"work has shape {work.shape}, host_of {host_of.shape}: (steps, ranks) and (ranks,) are needed"
        )
    parts = polish(work)
    persistent = parts.persistent
    slow = _slow(persistent, float(parts.transient.std()) / work.shape[0] ** 0.5, float(work.mean()))
    excess_s = np.where(slow, persistent - lower_median(persistent), 0.0)
    seed = int(rng.integers(2**63))
    whole = _fitted(work, host_of, resamples, np.random.default_rng(seed), slow)
    if not slow.any():
        return whole
    balanced = _fitted(work - excess_s, host_of, resamples, np.random.default_rng(seed), np.zeros_like(slow))
    return replace(whole, balanced=balanced)


def lower_median(values: Floats) -> float:
    """The lower of the two middle values: of two ranks the faster one."""
    return float(np.sort(values)[(values.size - 1) // 2])


def _slow(persistent: Floats, error_s: float, work_s: float) -> NDArray[np.bool_]:
    """Which ranks are slow: further above the lower median than most ranks, or ``error_s``, explain, (ranks,)."""
    above = persistent - lower_median(persistent)
    deviation = np.hypot(MAD_TO_SD * lower_median(np.abs(above)), 2 * error_s)  # two medians, 1.25 standard errors each
    slow: NDArray[np.bool_] = above > max(SLOW_DEVIATIONS * deviation, SLOW_SHARE * work_s)
    return slow


def _fitted(
    work: Floats, host_of: Indices, resamples: Indices, rng: np.random.Generator, slow: NDArray[np.bool_]
) -> Lateness:
    steps, ranks = work.shape
    draws = resamples.shape[0]
    times_drawn = np.zeros((draws, steps))
    np.add.at(times_drawn, (np.arange(draws)[:, None], resamples), 1.0)
    of_step = work.mean(axis=1)
    work_s = times_drawn @ of_step / resamples.shape[1]
    around = work - work.mean(axis=0)
    variance, common, of_host = _shared(around, host_of, times_drawn, rng)
    own = 1 - common - of_host
    predicted = ranks * common / (1 + (ranks - 1) * common)
    residuals = _residuals(around, predicted, np.sqrt(own * variance), resamples, rng)
    table, shape = tails.fitted(residuals, rng)
    table -= tails.mean(table)[:, None]
    host_table = np.zeros_like(table)
    if of_host.any():
        means = _of_hosts(around, host_of) / np.bincount(np.unique(host_of, return_inverse=True)[1])
        kept = predicted if means.shape[1] > 1 else np.zeros(draws)
        host_table, _ = tails.fitted(_residuals(means, kept, np.sqrt(of_host * variance), resamples, rng), rng)
        host_table -= tails.mean(host_table)[:, None]
    persistent = polish(work).persistent
    noise_s = float(np.sqrt(np.median(variance * own) / steps))
    spread_s = _spread(persistent, slow, Scales(noise_s=noise_s, work_s=float(work.mean())), rng, draws)
    center_s = np.median(persistent) - persistent.mean()
    drawn_max = work.max(axis=1)[resamples] - work_s[:, None]
    drawn_max -= predicted[:, None] * (of_step[resamples] - work_s[:, None])
    return Lateness(
        work_s=work_s,
        times_drawn=times_drawn,
        ordered_s=np.sort(work, axis=1),
        measured_max_s=_grouped(np.sort(drawn_max, axis=1)),
        new_s=tails.added(table, tails.normal(spread_s)) + center_s,
        host_s=host_table,
        shape=shape,
        reasons=tuple(_reasons(work.shape, int(np.unique(host_of).size), shape)),
    )


def _shared(
    around: Floats, host_of: Indices, times_drawn: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """The variance over steps, and the shares of it common to the job and to a host, (draws,) each.

    Where no two ranks are on different hosts, their correlation is shared out at random between job and host; of one
    rank nothing is known.
    """
    draws, ranks = times_drawn.shape[0], around.shape[1]
    squares = (around**2).sum(axis=1)
    of_hosts = _of_hosts(around, host_of)
    same = (of_hosts**2).sum(axis=1) - squares
    cross = around.sum(axis=1) ** 2 - (of_hosts**2).sum(axis=1)
    sizes = np.unique(host_of, return_counts=True)[1]
    same_pairs = int((sizes * (sizes - 1)).sum())
    cross_pairs = ranks * (ranks - 1) - same_pairs
    total = times_drawn @ squares / ranks
    variance: Floats = total / times_drawn.sum(axis=1)

    def correlation(products: Floats, pairs: int) -> Floats:
        mean = times_drawn @ products / pairs
        shared: Floats = np.clip(np.divide(mean, total, out=np.zeros(draws), where=total > 0), 0.0, 1.0)
        return shared

    if ranks == 1:
        return variance, np.asarray(rng.uniform(0, 1, draws)), np.zeros(draws)
    if not cross_pairs:
        both = correlation(same, same_pairs)
        job = rng.uniform(0, 1, draws) * both
        return variance, job, both - job
    job = correlation(cross, cross_pairs)
    if not same_pairs:
        return variance, job, np.zeros(draws)
    host: Floats = np.clip(correlation(same, same_pairs) - job, 0.0, 1 - job)
    return variance, job, host


def _of_hosts(values: Floats, host_of: Indices) -> Floats:
    """Sums of ``values`` (steps, ranks) over the ranks of each host, (steps, hosts)."""
    _, number = np.unique(host_of, return_inverse=True)
    sums = np.zeros((int(number.max()) + 1, values.shape[0]))
    np.add.at(sums, number, values.T)
    return sums.T


def _residuals(around: Floats, predicted: Floats, sd: Floats, resamples: Indices, rng: np.random.Generator) -> Floats:
    """Pooled residuals of each draw, (draws, n), without what is common, scaled to ``sd`` (draws,)."""
    kept = np.arange(around.shape[1])
    most = max(MOST_POOLED // resamples.shape[1], 1)
    if kept.size > most:
        kept = np.sort(rng.choice(kept, most, replace=False))
    values = around[:, kept][resamples] - predicted[:, None, None] * around.mean(axis=1)[resamples][:, :, None]
    pooled = values.reshape(resamples.shape[0], -1)[:, :MOST_POOLED]
    pooled = pooled - pooled.mean(axis=1, keepdims=True)
    now = pooled.std(axis=1)
    scale = np.divide(sd, now, out=np.zeros_like(sd), where=now > 0)
    scaled: Floats = pooled * scale[:, None]
    return scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What the spread of ranks is judged by: the standard error of one rank's mean, and the work of a step."""

    noise_s: float
    work_s: float


def _spread(
    persistent: Floats, slow: NDArray[np.bool_], scales: Scales, rng: np.random.Generator, draws: int
) -> Floats:
    """The standard deviation of u over ranks, (draws,), from its posterior: scaled inverse χ² (Gelman et al., §2.6).

    Slow ranks do not widen it, being ranks of the larger job as well; with fewer than ``FEW_RANKS`` they do in half of
    the draws.
    """

    def variance(values: Floats) -> float:
        if values.size < 2:
            return 0.0
        if values.size <= FEW_RANKS:
            return float(values.var(ddof=1))
        return (MAD_TO_SD * float(np.median(np.abs(values - np.median(values))))) ** 2

    without, whole = persistent[~slow], persistent
    alike = rng.random(draws) < 0.5 if slow.any() and persistent.size < FEW_RANKS else np.zeros(draws, dtype=np.bool_)
    freedom = np.where(alike, whole.size, without.size) - 1.0
    measured = np.where(alike, variance(whole), variance(without))
    squares = freedom * np.maximum(measured - scales.noise_s**2, 0.0)
    squares += SPREAD_WEIGHT * (SPREAD_SHARE * scales.work_s) ** 2
    spread_s: Floats = np.sqrt(squares / rng.chisquare(freedom + SPREAD_WEIGHT))
    return spread_s


def _grouped(ordered: Floats) -> Floats:
    """Means of at most ``GROUPS`` groups, equally many of each sorted row; the mean of a row stays as it is."""
    count = ordered.shape[1]
    cumulative = np.pad(np.cumsum(ordered, axis=1), ((0, 0), (1, 0)))
    groups = min(GROUPS, count)
    edges = np.linspace(0, count, groups + 1)
    below = np.minimum(edges.astype(np.intp), count - 1)
    share = edges - below
    at_edges = cumulative[:, below] + share * (cumulative[:, below + 1] - cumulative[:, below])
    means: Floats = np.diff(at_edges, axis=1) * (groups / count)
    return means


def _subset_weights(ranks: int, chosen: int) -> Floats:
    """The probability that each order statistic of ``ranks`` is the maximum of ``chosen``: C(j−1, k−1) ÷ C(m, k).

    >>> _subset_weights(4, 1).tolist(), _subset_weights(4, 4).tolist(), _subset_weights(3, 2).round(3).tolist()
    ([0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0], [0.0, 0.333, 0.667])
    """
    place = np.arange(2, ranks + 1, dtype=np.float64)
    below = np.cumprod(((place - chosen).clip(0) / (place - 1))[::-1])[::-1]
    weights: Floats = np.append(below, 1.0) * chosen / ranks
    return weights


def _reasons(shape_of_work: tuple[int, int], hosts: int, shape: Floats) -> list[str]:
    steps, ranks = shape_of_work
    reasons = []
    if ranks == 1:
        reasons.append("one rank shows neither how far ranks differ nor whether they are slow in the same steps")
    elif ranks < FEW_RANKS:
        reasons.append(f"{ranks} ranks show little of how far ranks differ persistently")
    if steps * ranks < FEW_RANK_STEPS:
        reasons.append(f"{steps * ranks} steps of ranks do not show the tail; {FEW_RANK_STEPS} would")
    elif (shape >= 1).mean() > 0.05:
        reasons.append("the tail is so heavy that its maximum may have no mean: its median counts")
    if hosts == 1 and ranks > 1:
        reasons.append("one host does not show whether steps are slow on one host or on all")
    return reasons
