"""Latency and rate of a link from the times of all-reduces: of a run's buckets, of probes, or as stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.probes.allreduce import misfit_reach, relative_fit
from allpull.predict.calibration.measured import MeasuredRun
from allpull.predict.calibration.parameters import Floats, Parameter, State
from allpull.predict.terms.algorithms import ALGORITHMS, OF_BACKEND
from allpull.replay.recording.bucket_times import MIXES
from allpull.schema.probes import AllreduceAnswer

LATENCY_QUANTILE = 0.1  # of a probe's repetitions: noise of hosts only adds to a latency
LARGE_SHARE = 0.25  # of a probe's largest size: a rate comes from sizes above it
FORM_TOLERANCE = 0.02  # of the misfit of the best algorithm: within it, the data cannot tell algorithms apart
LATENCY_SPREAD = 0.7  # of ln α where it is stated: what one link shows varies by a factor of two
PAYLOAD = (0.9, 0.9566)  # of a stated line rate: at most TCP's payload, 1448 of 1514 bytes of a frame
FILLED_BYTES_PER_S = 25e9 / 8  # a faster link is not surely filled: scaling on it stops to improve (arXiv:2006.10103)
HOST_SD = 0.01  # of the rate of a link from run to run, as of hosts of one kind
NORMAL_95 = 1.96  # standard deviations to either side hold 95 %
LEAST_LATENCY_S = 2.7e-6  # of a hop between hosts: NCCL's tuning.cc, ring, LL, NET
LEAST_S = 1e-9  # of an all-reduce: times are divided by
MIX_STEP = float(MIXES[1])  # how finely the share of latency in a run's buckets is resolved

LOCAL, NETWORK = "local", "network"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timed:
    """All-reduces of several sizes on one placement, with their time in each draw.

    ``size_bytes`` (sizes,); ``usual_s`` and ``quick_s`` (draws, sizes): the typical time, and the one for latencies.
    ``is_probe``: repetitions of a probe, which nothing overlaps.
    """

    source: str
    ranks: int
    hosts: int
    backend: str | None
    size_bytes: Floats
    usual_s: Floats
    quick_s: Floats
    is_probe: bool

    @property
    def link(self) -> str:
        """Which link limits it."""
        return NETWORK if self.hosts > 1 else LOCAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """Of one link and one algorithm: ``latency_s`` and ``s_per_byte`` (draws,), and the mean relative misfit."""

    latency_s: Floats
    s_per_byte: Floats
    misfit: float


def of_run(run: MeasuredRun, resamples: NDArray[np.intp]) -> Timed:
    """The buckets of ``run``: means over resampled steps, (draws, n)."""
    assert run.bucket_bytes is not None
    usual = np.array([run.bucket_s[chosen].mean(axis=0) for chosen in resamples])
    quick = np.array([np.median(run.bucket_s[chosen], axis=0) for chosen in resamples])
    return Timed(
        source=run.run,
        ranks=run.ranks,
        hosts=run.hosts,
        backend=run.backend,
        size_bytes=run.bucket_bytes,
        usual_s=usual,
        quick_s=quick,
        is_probe=False,
    )


def of_probe(run: str, answer: AllreduceAnswer, hosts: int, draws: int, rng: np.random.Generator) -> Timed:
    """The repetitions of an all-reduce probe, resampled."""
    ordered = sorted(answer.results, key=lambda one: one.size_bytes)
    samples = [np.asarray(one.times_s) for one in ordered]
    drawn = [rng.choice(sample, (draws, sample.size)) for sample in samples]
    return Timed(
        source=run,
        ranks=answer.ranks,
        hosts=hosts,
        backend=answer.backend,
        size_bytes=np.array([float(one.size_bytes) for one in ordered]),
        usual_s=np.column_stack([np.median(one, axis=1) for one in drawn]),
        quick_s=np.column_stack([np.quantile(one, LATENCY_QUANTILE, axis=1) for one in drawn]),
        is_probe=True,
    )


def algorithms_of(backends: Sequence[str | None]) -> tuple[str, ...]:
    """The algorithms that jobs on ``backends`` may use."""
    known = [OF_BACKEND.get(name or "", tuple(ALGORITHMS)) for name in dict.fromkeys(backends)]
    return tuple(name for name in ALGORITHMS if any(name in some for some in known)) or tuple(ALGORITHMS)


def fitted(timed: Sequence[Timed], algorithm: str, local_ratio: Floats, rng: np.random.Generator) -> Link:
    """The link that explains ``timed``, all of which it limits, if they use ``algorithm``.

    ``local_ratio`` (draws,): the latency of a hop within a host over that of a hop between hosts, where both occur.

    Latencies come from probes where there are any, since nothing overlaps them; rates from runs where there are any,
    since there everything does. Equal sizes on one placement do not tell a latency: any is drawn, evenly in its
    logarithm, up to one that is all of the time.
    """
    probes, runs = [one for one in timed if one.is_probe], [one for one in timed if not one.is_probe]
    if probes:
        latency = _latency(probes, algorithm, local_ratio, rng)
    elif _separable(runs, algorithm):
        latency = _latency(runs, algorithm, local_ratio, rng)
        latency = latency + rng.uniform(0, MIX_STEP / 2, latency.size) * _largest_latency(runs, algorithm, local_ratio)
    else:
        most = np.maximum(_largest_latency(runs, algorithm, local_ratio), LEAST_LATENCY_S)
        latency = LEAST_LATENCY_S * (most / LEAST_LATENCY_S) ** rng.uniform(0, 1, local_ratio.size)
    rates = [_rates(one, algorithm, local_ratio, latency) for one in runs or probes]
    s_per_byte = np.mean(rates, axis=0) * (1 + rng.normal(0, HOST_SD, local_ratio.size))
    misfit = float(np.mean([_misfit(one, algorithm, local_ratio, latency, s_per_byte) for one in timed]))
    return Link(latency_s=latency, s_per_byte=s_per_byte, misfit=misfit)


def latency_state(timed: Sequence[Timed], algorithm: str) -> tuple[State, str | None]:
    """How well ``timed`` identify a latency, and why not better."""
    if any(one.is_probe for one in timed):
        return "measured", None
    if _separable(timed, algorithm):
        return "weakly identified", "the buckets of a run differ little in size, and other work hides their latency"
    return "weakly identified", "all-reduces of one size do not tell latency from rate"


def stated_rate(bytes_per_s: float, draws: int, rng: np.random.Generator) -> Floats:
    """Seconds per byte of a link of a stated line rate, (draws,)."""
    least = PAYLOAD[0] * min(bytes_per_s, FILLED_BYTES_PER_S)
    rates: Floats = 1 / rng.uniform(least, PAYLOAD[1] * bytes_per_s, draws)
    return rates


def stated_latency(latency_s: float, draws: int, rng: np.random.Generator) -> Floats:
    """A stated latency, (draws,)."""
    spread: Floats = latency_s * np.exp(rng.normal(0, LATENCY_SPREAD, draws))
    return spread


def parameters(link: str, fit: Link, state: tuple[State, str | None], source: str, measure: str) -> list[Parameter]:
    """``fit`` as two parameters of ``link``."""
    latency, reason = state
    return [
        Parameter(
            name=f"{link} latency",
            unit="s",
            draws=fit.latency_s,
            state=latency,
            reason=reason,
            source=source,
            measure=None if reason is None else measure,
        ),
        Parameter(name=f"{link} time per byte", unit="s/byte", draws=fit.s_per_byte, state="measured", source=source),
    ]


def _design(one: Timed, algorithm: str, local_ratio: Floats) -> tuple[Floats, Floats]:
    """Hops that count with the latency of the link, (draws,), and bytes that it carries, (sizes,)."""
    cost = ALGORITHMS[algorithm](one.ranks, one.hosts)
    if one.link == LOCAL:
        return np.full_like(local_ratio, cost.hops_local), cost.bytes_local * one.size_bytes
    return cost.hops_network + local_ratio * cost.hops_local, cost.bytes_network * one.size_bytes


def _separable(timed: Sequence[Timed], algorithm: str) -> bool:
    """Whether ratios of hops to bytes differ between the all-reduces."""
    ratios = np.concatenate(
        [carried / hops[0] for hops, carried in (_design(one, algorithm, np.zeros(1)) for one in timed)]
    )
    return bool(ratios.max() > 1.5 * ratios.min())


def _latency(timed: Sequence[Timed], algorithm: str, local_ratio: Floats, rng: np.random.Generator) -> Floats:
    """Latency of the quick times, (draws,), with what their deviation from the formula leaves open."""
    columns, times = [], []
    for one in timed:
        hops, carried = _design(one, algorithm, local_ratio)
        shape = (local_ratio.size, carried.size)
        columns.append(np.stack([np.broadcast_to(hops[:, None], shape), np.broadcast_to(carried, shape)], axis=2))
        times.append(np.maximum(one.quick_s, LEAST_S))
    design, quick_s = np.concatenate(columns, axis=1), np.concatenate(times, axis=1)
    both = relative_fit(design, quick_s)
    reach = misfit_reach(design.mean(axis=0) / quick_s.mean(axis=0)[:, None], both.mean(axis=0))
    latency: Floats = np.abs(both[:, 0] + rng.normal(0, reach[0] / NORMAL_95, local_ratio.size))
    return latency


def _largest_latency(timed: Sequence[Timed], algorithm: str, local_ratio: Floats) -> Floats:
    """The latency with which the quickest all-reduce would be latency alone, (draws,)."""
    each = [one.usual_s.min(axis=1) / _design(one, algorithm, local_ratio)[0] for one in timed]
    least: Floats = np.min(each, axis=0)
    return least


def _rates(one: Timed, algorithm: str, local_ratio: Floats, latency_s: Floats) -> Floats:
    """Seconds per byte given the latency, (draws,): of the sum over buckets, or of a probe's large sizes."""
    hops, carried = _design(one, algorithm, local_ratio)
    large = one.size_bytes >= (LARGE_SHARE * one.size_bytes.max() if one.is_probe else 0)
    left = one.usual_s[:, large].sum(axis=1) - hops * latency_s * large.sum()
    rates: Floats = np.maximum(left, 0.0) / carried[large].sum()
    return rates


def _misfit(one: Timed, algorithm: str, local_ratio: Floats, latency_s: Floats, s_per_byte: Floats) -> float:
    """Mean relative error of the sum over sizes."""
    hops, carried = _design(one, algorithm, local_ratio)
    modelled = (hops * latency_s)[:, None] + s_per_byte[:, None] * carried
    return float(np.abs(modelled.sum(axis=1) / one.usual_s.sum(axis=1) - 1).mean())
