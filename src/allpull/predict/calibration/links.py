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
from allpull.replay.recording.bucket_times import BETTER, EXACT_S, MIXES
from allpull.schema.probes import AllreduceAnswer

LATENCY_QUANTILE = 0.1  # of a probe's repetitions: noise of hosts only adds to a latency
LARGE_SHARE = 0.25  # of a probe's largest size: a rate comes from sizes above it
FORM_TOLERANCE = 0.02  # of the misfit of the best algorithm: within it, the data cannot tell algorithms apart
LATENCY_SPREAD = 0.7  # of ln α where it is stated: what one link shows varies by a factor of two
PAYLOAD = (0.9, 0.9566)  # of a stated line rate: at most TCP's payload, 1448 of 1514 bytes of a frame
FILLED_BYTES_PER_S = 25e9 / 8  # a faster link is not surely filled: scaling on it stops to improve (arXiv:2006.10103)
HOST_SD = 0.01  # of the rate of a link from run to run, as of hosts of one kind
NORMAL_95 = 1.96  # standard deviations to either side hold 95 %
LEAST_S = 1e-9  # of an all-reduce: times are divided by
MOST_HOP_S = 1e-3  # of a hop: ten times that of TCP in a data centre, for threads that wait for a CPU
EQUAL_ERROR = 1 / BETTER  # of the least error: mixes within it explain a run equally well
MIX_STEP = float(MIXES[1])  # how finely the share of latency in a run's buckets is resolved
DISTINCT = 1.5  # between ratios of hops to bytes: with less, errors of the times hide a latency

LOCAL, NETWORK = "local", "network"
LEAST_HOP_S = {LOCAL: 0.6e-6, NETWORK: 2.7e-6}
"""The quickest hops of NCCL's tuning.cc: ring, LL, over NVLink and over a network."""

NCCL_RATIOS = (0.22, 0.63)
"""Latency of a hop within a host over that of one between hosts, in NCCL's tuning.cc (ring): 0.6/2.7, 1.9/4 and 3.4/14
over NVLink with LL, LL128 and Simple, 1/2.7, 2.5/4 and 5.7/14 over PCIe. The table's own times are 18 % off even on
machines that it was made for (NCCL issue 1154), so that only ratios are used, of what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timed:
    """All-reduces of several sizes on one placement, with their time in each draw.

    ``size_bytes`` (sizes,); ``usual_s`` and ``quick_s`` (draws, sizes): the typical time, and the one for latencies.
    ``is_probe``: repetitions of a probe, which nothing overlaps. ``latency_shares`` (draws,) each: the least and the
    most of all time that may be latency, None: each size was timed.
    """

    source: str
    ranks: int
    hosts: int
    backend: str | None
    size_bytes: Floats
    usual_s: Floats
    quick_s: Floats
    is_probe: bool
    latency_shares: tuple[Floats, Floats] | None = None

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
        latency_shares=None if run.missed_s is None else _latency_shares(run.missed_s, resamples),
    )


def _latency_shares(missed_s: Floats, resamples: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """The least and the most share of latency that explains the ends of the reductions of each draw, (draws,) each.

    All shares whose error is within ``EQUAL_ERROR`` of the least explain them equally well.
    """
    steps = missed_s.shape[0]
    times_drawn = np.zeros((resamples.shape[0], steps))
    np.add.at(times_drawn, (np.arange(resamples.shape[0])[:, None], resamples), 1 / resamples.shape[1])
    of_mix = (times_drawn @ missed_s.reshape(steps, -1)).reshape(-1, *missed_s.shape[1:]).min(axis=2)
    is_equal = of_mix <= EQUAL_ERROR * of_mix.min(axis=1, keepdims=True) + EXACT_S
    least, most = MIXES[is_equal.argmax(axis=1)], MIXES[::-1][is_equal[:, ::-1].argmax(axis=1)]
    return np.maximum(least - MIX_STEP / 2, 0.0), np.minimum(most + MIX_STEP / 2, 1.0)


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


def local_ratios(backends: Sequence[str | None]) -> tuple[float, float]:
    """The range of the latency of a hop within a host over that of one between hosts, where only one is measured."""
    return NCCL_RATIOS if set(backends) == {"nccl"} else (0.0, 1.0)


def ratio_source(backends: Sequence[str | None]) -> str:
    """Where ``local_ratios`` come from."""
    is_table = local_ratios(backends) == NCCL_RATIOS
    return "network latency, by its ratio in NCCL's tuning.cc" if is_table else "at most that of a hop between hosts"


def fitted(
    timed: Sequence[Timed],
    algorithm: str,
    local_ratio: Floats,
    rng: np.random.Generator,
    known_latency: Floats | None = None,
) -> Link:
    """The link that explains ``timed``, all of which it limits, if they use ``algorithm``.

    ``local_ratio`` (draws,): the latency of a hop within a host over that of a hop between hosts, where both occur.
    ``known_latency`` (draws,): as stated; the rate is then what explains the remaining time.

    Latencies come from probes where there are any, since nothing overlaps them; rates from runs where there are any,
    since there everything does. Equal sizes on one placement do not tell a latency: any is drawn, evenly in its
    logarithm, up to one that is all of the time.
    """
    probes, runs = [one for one in timed if one.is_probe], [one for one in timed if not one.is_probe]
    if known_latency is not None:
        latency = known_latency
    elif probes:
        latency = _latency(probes, algorithm, local_ratio, rng)
    elif all(one.latency_shares is None for one in runs) and _separable(runs, algorithm):
        latency = _latency(runs, algorithm, local_ratio, rng)
    else:
        latency = _latency_of_ends(runs, algorithm, local_ratio, rng)
    rates = [_rates(one, algorithm, local_ratio, latency) for one in runs or probes]
    s_per_byte = np.mean(rates, axis=0) * (1 + rng.normal(0, HOST_SD, local_ratio.size))
    misfit = float(np.mean([_misfit(one, algorithm, local_ratio, latency, s_per_byte) for one in timed]))
    return Link(latency_s=latency, s_per_byte=s_per_byte, misfit=misfit)


def latency_state(timed: Sequence[Timed], algorithm: str) -> tuple[State, str | None]:
    """How well ``timed`` identify a latency, and why not better."""
    if any(one.is_probe for one in timed):
        return "measured", None
    if any(one.latency_shares is not None for one in timed):
        return "weakly identified", "a run shows when its last bucket ends, which tells little of latency"
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
    return bool(ratios.max() > DISTINCT * ratios.min())


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


def _latency_of_ends(timed: Sequence[Timed], algorithm: str, local_ratio: Floats, rng: np.random.Generator) -> Floats:
    """Any latency between the least and the most that the totals of all runs allow, (draws,)."""
    floor_s = max(LEAST_HOP_S[one.link] for one in timed)
    least, most = np.full_like(local_ratio, floor_s), np.full_like(local_ratio, np.inf)
    for one in timed:
        hops, _ = _design(one, algorithm, local_ratio)
        all_of_it = one.usual_s.mean(axis=1) / hops
        low, high = one.latency_shares or (0.0, one.usual_s.min(axis=1) / hops / all_of_it)
        least = np.maximum(least, low * all_of_it)
        most = np.minimum(most, high * all_of_it)
    most = np.maximum(least, np.where(least < MOST_HOP_S, np.minimum(most, MOST_HOP_S), most))
    latency: Floats = least * (most / least) ** rng.uniform(0, 1, local_ratio.size)
    of_totals = _latency_of_totals(timed, algorithm, local_ratio, rng)
    return latency if of_totals is None else np.clip(of_totals, least, most)


def _latency_of_totals(
    timed: Sequence[Timed], algorithm: str, local_ratio: Floats, rng: np.random.Generator
) -> Floats | None:
    """Latency from the total times of runs whose hops grow otherwise than their bytes, (draws,); None: none do."""
    columns, totals_s = [], []
    for one in timed:
        hops, carried = _design(one, algorithm, local_ratio)
        columns.append(np.column_stack([hops * carried.size, np.full_like(hops, carried.sum())]))
        totals_s.append(one.usual_s.sum(axis=1) * (1 + rng.normal(0, HOST_SD, hops.size)))
    design = np.stack(columns, axis=1)
    ratios = design[0, :, 0] / design[0, :, 1]
    if ratios.max() <= DISTINCT * ratios.min():
        return None
    return relative_fit(design, np.maximum(np.column_stack(totals_s), LEAST_S))[:, 0]


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
