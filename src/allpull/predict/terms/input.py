"""Input: how many samples per second a host can prepare, as the soft minimum of what limits it.

    X = [ (w d)^−p + C^−p + (B ÷ (n s (1 − h)))^−p + (K ÷ (s (1 − h)))^−p ]^(−1/p)

with w workers per host of d samples/s each, C of all cores of a host, B bytes/s of the file system that n hosts share,
K bytes/s of the local disk, s bytes per sample, and h the share that the page cache serves: h = min(1, cache ÷ data of
an epoch) where samples are dealt to hosts anew each epoch, min(1, n · cache ÷ data) where each host keeps its shards,
and 0 in the first epoch. p → ∞ is the minimum: the slowest part alone counts. At the knee parts wait for each other,
and p is lower: 1.45 fits the worker sweep of a ResNet on Marconi100, a hard minimum those of DLPerf. A step needs g · b
samples per host; loaders work ahead, so only what a step does not hide is waited for.

A limit is measured only where it was reached. Where every rate that was measured is a demand, the largest of them is a
lower bound: 1 ÷ limit is then drawn evenly from 0 to 1 ÷ bound, so that the time of a larger job spans everything from
no limit at all to the bound itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SOFTEST, HARDEST = 1.45, 16.0  # p: of the sweep on Marconi100; at 16 two equal limits give 96 % of one
SATURATED = 0.9  # of the sum of hosts alone: below it, hosts together have reached a shared limit
WAITED = 0.02  # of a step: a job that waits longer for input runs at the rate of its input
SWEEP = 3  # numbers of workers: fewer do not tell d, C and p apart

_P = np.geomspace(1.0, HARDEST, 33)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limit:
    """A rate that cannot be exceeded, (draws,); ``is_bound``: it was never reached, and is at least ``least``."""

    rate: Floats
    is_bound: bool = False
    least: float = 0.0

    def times(self, factor: float | Floats) -> Limit:
        """``factor`` times as high, a number or (draws,)."""
        return Limit(rate=self.rate * factor, is_bound=self.is_bound, least=float(np.median(self.least * factor)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Input:
    """What limits the input of a host; None: not known, and not counted.

    ``worker`` and ``cores`` in samples/s; ``shared`` (all hosts together) and ``disk`` (each host) in bytes/s;
    ``sharpness`` (draws,): p. ``cache_bytes``, a number or (draws,): memory of a host that the page cache may use.
    ``dataset_bytes``: of an epoch of all hosts, None: not known, and nothing counts as cached. ``is_dealt``, one or
    (draws,): whether samples are dealt to hosts anew in each epoch; otherwise shards stay with their host.
    """

    sharpness: Floats
    bytes_per_sample: float
    worker: Limit | None = None
    cores: Limit | None = None
    shared: Limit | None = None
    disk: Limit | None = None
    cache_bytes: float | Floats = 0.0
    dataset_bytes: float | None = None
    is_dealt: bool | NDArray[np.bool_] = False

    def cached_share(self, hosts: int) -> Floats:
        """The cached share, h, on each of ``hosts``, after the first epoch; a number or (draws,)."""
        if self.dataset_bytes is None:
            return np.zeros(())
        cached = self.cache_bytes * np.where(self.is_dealt, 1, hosts)
        return np.minimum(1.0, cached / self.dataset_bytes) if self.dataset_bytes > 0 else np.ones(())

    def limits(self, hosts: int, workers: float | None, *, first_epoch: bool = False) -> dict[str, Limit]:
        """The limits of one of ``hosts`` in samples/s, with ``workers`` per host."""
        missed = self.bytes_per_sample * (1 - (np.zeros(()) if first_epoch else self.cached_share(hosts)))
        known = {"cores": self.cores}
        if self.worker is not None and workers is not None:
            known["workers"] = self.worker.times(workers)
        if missed.any():
            with np.errstate(divide="ignore"):
                per_byte = 1 / missed
            known["shared storage"] = None if self.shared is None else self.shared.times(per_byte / hosts)
            known["disk"] = None if self.disk is None else self.disk.times(per_byte)
        return {name: limit for name, limit in known.items() if limit is not None}

    def rate(self, hosts: int, workers: float | None, *, first_epoch: bool = False) -> Floats:
        """Samples/s of a host, (draws,); infinite where nothing limits it."""
        limits = self.limits(hosts, workers, first_epoch=first_epoch)
        return soft_minimum([limit.rate for limit in limits.values()], self.sharpness)

    def seconds(self, samples: float, hosts: int, workers: float | None, *, first_epoch: bool = False) -> Floats:
        """To prepare ``samples`` on each of ``hosts``: those of a step, s, (draws,)."""
        seconds: Floats = samples / self.rate(hosts, workers, first_epoch=first_epoch)
        return seconds

    def unmeasured(self, samples_per_s: float, hosts: int, workers: float | None) -> tuple[str, ...]:
        """The limits that a demand of ``samples_per_s`` per host goes beyond, and which were never reached."""
        limits = self.limits(hosts, workers)
        return tuple(name for name, one in limits.items() if one.is_bound and samples_per_s > one.least)


def soft_minimum(rates: list[Floats], sharpness: Floats) -> Floats:
    """(Σ rate^−p)^(−1/p) of rates > 0, (draws,) each; ∞ of none.

    >>> soft_minimum([np.array([100.0]), np.array([100.0])], np.array([1.0])).tolist()
    [50.0]
    """
    if not rates:
        return np.full(sharpness.shape, np.inf)
    stacked = np.stack(rates)
    least = stacked.min(axis=0)
    with np.errstate(invalid="ignore"):
        relative = np.where(np.isinf(stacked), 0.0, least / stacked)
    softer: Floats = least * (relative**sharpness).sum(axis=0).clip(1.0) ** (-1 / sharpness)
    return softer


def wait(input_s: Floats, busy_s: Floats) -> Floats:
    """What a step waits for input that takes ``input_s`` while it is busy for ``busy_s`` with everything else.

    Loaders work ahead, so a step lasts as long as the longer of the two.
    """
    return np.maximum(input_s - busy_s, 0.0)


def reached(rate: Floats) -> Limit:
    """A limit that was reached at ``rate`` (draws,)."""
    return Limit(rate=rate, least=float(rate.min()))


def at_least(least: float, draws: int, rng: np.random.Generator) -> Limit:
    """A limit that was not reached by a demand of ``least``: 1 ÷ limit is drawn evenly from 0 to 1 ÷ ``least``."""
    return Limit(rate=least / (1 - rng.random(draws)), is_bound=True, least=least)


def of_hosts(rates: dict[int, Floats], rng: np.random.Generator) -> tuple[Limit, Limit]:
    """The limit of one host, and the one that all share, from the ``rates`` of some hosts at once, (draws,) each.

    One host alone reaches its own limit. Several reach the shared one where they get less than ``SATURATED`` of as many
    single hosts; else it is at least what they got together.

    Raises:
        ValueError: one host alone was not measured.
    """
    if 1 not in rates:
        raise ValueError("the rate of one host alone is needed")
    most = max(rates)
    together, alone = rates[most], rates[1]
    if most > 1 and float(np.median(together)) < SATURATED * most * float(np.median(alone)):
        return reached(alone), reached(together)
    return reached(alone), at_least(float(np.median(together)), alone.size, rng)


def fitted_workers(workers: Floats, rates: Floats, rng: np.random.Generator) -> tuple[Limit, Limit, Floats]:
    """The limit of one worker, that of all cores, and p, from a sweep of ``workers`` (n,) with ``rates`` (draws, n).

    For each p the inverse rates x^−p = d^−p · w^−p + C^−p are linear in the two unknowns; of all p that of the least
    relative error counts. With fewer than ``SWEEP`` numbers of workers p is drawn. Where more workers always help as
    much, cores are no limit yet: they are at least the highest rate.
    """
    draws, count = rates.shape
    if np.unique(workers).size < SWEEP:
        sharpness = drawn_sharpness(draws, rng)
        quick = int(np.argmax(np.median(rates, axis=0)))
        few = int(np.argmin(workers))
        return reached(rates[:, few] / workers[few]), at_least(float(np.median(rates[:, quick])), draws, rng), sharpness
    best = np.full(draws, np.inf)
    worker, cores, sharpness = np.empty(draws), np.empty(draws), np.empty(draws)
    scale = rates.max(axis=1, keepdims=True)  # powers of rates must not overflow
    for p in _P:
        inverse, each = (rates / scale) ** -p, np.broadcast_to(workers**-p, (draws, count))
        slope, level = _relative_line(each, inverse)
        fitted = (slope[:, None] * each + level[:, None]) ** (-1 / p)
        error = ((fitted / (rates / scale) - 1) ** 2).sum(axis=1)
        better = error < best
        best[better], sharpness[better] = error[better], p
        worker[better] = slope[better] ** (-1 / p)
        with np.errstate(divide="ignore"):
            cores[better] = level[better] ** (-1 / p)
    worker, cores = worker * scale[:, 0], cores * scale[:, 0]
    highest = rates.max(axis=1)
    most = float(np.median(highest))
    if np.median(cores) > 2 * most:  # such a limit would take 5 % off the highest rate at p = 3: that is noise
        return reached(worker), at_least(most, draws, rng), sharpness
    return reached(worker), Limit(rate=np.maximum(cores, highest), least=most), sharpness


def drawn_sharpness(draws: int, rng: np.random.Generator) -> Floats:
    """Drawn p where nothing identifies it, (draws,)."""
    return np.exp(rng.uniform(np.log(SOFTEST), np.log(HARDEST), draws))


def _relative_line(each: Floats, inverse: Floats) -> tuple[Floats, Floats]:
    """Slope and level ≥ 0 of ``inverse`` against ``each`` (draws, n), by least squares of relative residuals."""
    one, two = each / inverse, 1 / inverse
    squares, products, level_squares = (one * one).sum(axis=1), (one * two).sum(axis=1), (two * two).sum(axis=1)
    first, second = one.sum(axis=1), two.sum(axis=1)
    determinant = np.maximum(squares * level_squares - products**2, 1e-300)
    slope = (level_squares * first - products * second) / determinant
    level = (squares * second - products * first) / determinant
    flat, proportional = second / level_squares, first / squares
    slope_only, level_only = level <= 0, slope <= 0
    level = np.where(slope_only, 0.0, np.where(level_only, flat, level))
    slope = np.where(slope_only, proportional, np.where(level_only, 1e-12, slope))
    return slope, level
