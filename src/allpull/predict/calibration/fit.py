"""Fit all parameters of a forecast to measured runs, probes and stated facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allpull.predict.calibration import links
from allpull.predict.calibration.calibrated import Calibration, Probe, Stated
from allpull.predict.calibration.crowding import crowding, growth, work_s
from allpull.predict.calibration.epochs import events
from allpull.predict.calibration.links import LOCAL, NETWORK, Timed
from allpull.predict.calibration.measured import CannotCalibrate, MeasuredRun
from allpull.predict.calibration.parameters import DRAWS, Floats, Parameter, Parameters, State
from allpull.predict.calibration.step import step_terms
from allpull.predict.job import Job
from allpull.predict.terms import compute
from allpull.predict.terms.compute import Compute
from allpull.predict.terms.exchange import SLOWDOWN
from allpull.predict.terms.lateness import block_resamples
from allpull.predict.terms.lateness import fitted as fitted_lateness

SEED = 0
LOOKS = 32  # steps of each draw on which the overlap of buckets is computed
MOST_LATENCY_S = 1e-4  # of a hop between hosts in one data centre, by TCP
MOST_ERROR = 1 / 3  # of a step of a calibrated run: an interval that allows for it spans a factor of three
REPEAT_SD = 0.0071  # of a step from run to run: the 90 % quantile of how entries of MLPerf repeat

PROBE_NETWORK = "allpull probe allreduce -n {ranks} --set launch.hosts={hosts}"
PROBE_LOCAL = "allpull probe allreduce -n {ranks}"


def calibrate(
    runs: Sequence[MeasuredRun], probes: Sequence[Probe] = (), stated: Stated | None = None, *, draws: int = DRAWS
) -> Calibration:
    """The parameters that ``runs``, of one program, and ``probes`` show.

    Raises:
        CannotCalibrate: no run has a batch, or what they show contradicts itself.
    """
    stated = stated or Stated()
    rng = np.random.default_rng(SEED)
    largest, batch = _largest(runs)
    resamples = {id(run): block_resamples(run.steps, draws, rng) for run in runs}
    repeat = rng.normal(0, REPEAT_SD, draws)
    lateness = fitted_lateness(_own_work(largest), largest.host_of, resamples[id(largest)], rng)
    with_buckets = max(
        (run for run in runs if run.per_step), key=lambda run: (run.ranks, run.is_whole_lane), default=largest
    )
    timed = _timed(runs, probes, resamples, draws, rng)
    latency = None if stated.latency_s is None else links.stated_latency(stated.latency_s, draws, rng)
    exchange = _exchange(timed, with_buckets, latency, draws, rng)
    by_host = crowding(runs, largest, resamples)
    looks = rng.permuted(resamples[id(with_buckets)], axis=1)[:, :LOOKS]
    all_epochs = [run.epochs for run in runs if run.epochs is not None]
    epochs = max(all_epochs, key=lambda one: one.ranks, default=None)
    fit = Calibration(
        job=Job(
            ranks=largest.ranks,
            hosts=largest.hosts,
            batch=batch,
            workers=largest.workers,
            samples_per_epoch=None if epochs is None else epochs.samples,
            bucket_bytes=() if with_buckets.bucket_bytes is None else tuple(map(int, with_buckets.bucket_bytes)),
        ),
        largest=largest,
        runs=runs,
        probes=probes,
        parameters=Parameters.of(
            [
                *_work(largest, resamples[id(largest)], repeat, draws, rng),
                *exchange.parameters,
                *_calls(largest, resamples[id(largest)], draws, rng),
                *growth(by_host, rng),
            ]
        ),
        compute=_compute(runs, resamples, repeat),
        lateness=lateness,
        lead_s=with_buckets.last_lead_s[looks],
        balanced_lead_s=with_buckets.lead_s[looks],
        algorithms=exchange.algorithms,
        algorithm=exchange.algorithm,
        known_links=exchange.known_links,
        events={} if epochs is None else events(epochs, all_epochs, draws, rng),
        crowding=by_host,
        notes=tuple(exchange.notes),
    )
    return _with_local_rate(_with_stated(_with_error(fit, rng), stated, latency, rng), rng)


def _largest(runs: Sequence[MeasuredRun]) -> tuple[MeasuredRun, float]:
    """The run with most ranks, of ``runs`` that all show what their ranks exchange, and its batch."""
    largest = max(runs, key=lambda run: (run.ranks, run.steps))
    if largest.batch is None:
        raise CannotCalibrate(f"{largest.run}: how many samples a rank has per step was not recorded")
    for run in runs:
        if run.ranks > 1 and run.per_step == 0:
            raise CannotCalibrate(
                f"{run.run}: the observation saw no reduction of gradients: what ranks exchange is unknown"
            )
    return largest, largest.batch


def _with_local_rate(fit: Calibration, rng: np.random.Generator) -> Calibration:
    """``fit`` with any rate within a host that is at least the one between hosts, where none was measured.

    Algorithms of two levels exchange within hosts as well: without a rate that would cost them nothing.
    """
    name, between = f"{LOCAL} time per byte", f"{NETWORK} time per byte"
    if name in fit.parameters or between not in fit.parameters:
        return fit
    parameter = Parameter(
        name=name,
        unit="s/byte",
        draws=rng.uniform(0, 1, fit.algorithm.size) * fit.parameters[between],
        state="assumed",
        source="at least the rate between hosts",
        reason="no run or probe is within one host",
        measure=PROBE_LOCAL.format(ranks=max(2, fit.largest.ranks // fit.largest.hosts)),
    )
    return replace(fit, parameters=Parameters(by_name={**fit.parameters.by_name, name: parameter}))


def _with_error(fit: Calibration, rng: np.random.Generator) -> Calibration:
    """``fit`` with the error of the model on the steps that it was fitted to, which every forecast has as well.

    Raises:
        CannotCalibrate: it is larger than ``MOST_ERROR`` for one run.
    """
    by_run = {run.run: _error(fit, run) for run in fit.runs if run.batch is not None and run.per_step}
    errors = list(by_run.values())
    worst = max(by_run, key=lambda run: abs(by_run[run]), default="")
    if worst and abs(by_run[worst]) > MOST_ERROR:
        raise CannotCalibrate(
            f"the runs contradict each other: the model that fits them best misses {worst} by {by_run[worst]:+.0%}",
            hint="give runs that differ in their ranks and batch alone",
        )
    error = float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0
    draws = rng.normal(0, error, fit.algorithm.size)
    parameter = Parameter(
        name="model error",
        unit="share of the step",
        draws=draws,
        state="measured",
        source=", ".join(run.run for run in fit.runs if run.per_step) or fit.largest.run,
    )
    by_name = {**fit.parameters.by_name, parameter.name: parameter}
    return replace(fit, parameters=Parameters(by_name=by_name), error=error)


def _error(fit: Calibration, run: MeasuredRun) -> float:
    """The relative error of the model's step of ``run``."""
    assert run.batch is not None
    job = replace(fit.job, ranks=run.ranks, hosts=run.hosts, batch=run.batch)
    return float(np.median(sum(step_terms(job, fit).values()))) / run.step_s - 1


def _mean(values: Floats, resamples: NDArray[np.intp]) -> Floats:
    """The mean of each draw of ``values`` (steps,), (draws,)."""
    means: Floats = values[resamples].mean(axis=1)
    return means


def _own_work(run: MeasuredRun) -> Floats:
    """Work of each rank and step, s: without waiting for a loader that limits it, which waits less when others wait."""
    work_s: Floats = run.work_s - run.input_s if run.waits_for_input else run.work_s
    return work_s


def _compute(runs: Sequence[MeasuredRun], resamples: Mapping[int, NDArray[np.intp]], repeat: Floats) -> Compute:
    """Work without waiting for input against the batch; of runs of one batch, the one with the most ranks counts."""
    by_batch: dict[float, MeasuredRun] = {}
    for run in runs:
        if run.batch is not None and (run.batch not in by_batch or run.ranks > by_batch[run.batch].ranks):
            by_batch[run.batch] = run
    work = {batch: work_s(run, resamples) * (1 + repeat) for batch, run in by_batch.items()}
    try:
        return compute.fitted(work)
    except ValueError as error:
        raise CannotCalibrate(str(error)) from error


def _work(
    run: MeasuredRun, resamples: NDArray[np.intp], repeat: Floats, draws: int, rng: np.random.Generator
) -> list[Parameter]:
    """Waiting for input, the end of a reduction, and how far overlap slows compute."""
    slowdown = np.zeros(draws) if run.ranks > 1 else rng.uniform(0, SLOWDOWN, draws)
    state: State = "measured" if run.ranks > 1 else "assumed"
    is_limit = run.waits_for_input
    input_s = _mean(run.walls_s if is_limit else run.input_s.mean(axis=1), resamples) * (1 + repeat)
    return [
        Parameter(
            name="input per batch" if is_limit else "input wait",
            unit="s",
            draws=input_s,
            state="measured",
            source=run.run,
        ),
        Parameter(
            name="end of reduction", unit="s", draws=_mean(run.tail_s, resamples), state="measured", source=run.run
        ),
        Parameter(
            name="overlap slow-down",
            unit="share of the time in flight",
            draws=slowdown,
            state=state,
            source=run.run if run.ranks > 1 else "arXiv:2006.10103",
            reason=None if run.ranks > 1 else "one rank exchanges nothing while it computes",
            measure=None if run.ranks > 1 else "the same training on 2 ranks",
        ),
    ]


def _calls(run: MeasuredRun, resamples: NDArray[np.intp], draws: int, rng: np.random.Generator) -> list[Parameter]:
    """Transfers of collectives that the program calls, and whether they grow with log2 of the ranks or not at all."""
    if not run.calls_s.any():
        return []
    reason = "one number of ranks does not show how these collectives grow: between not at all and log2 of the ranks"
    return [
        Parameter(
            name="other collectives", unit="s", draws=_mean(run.calls_s, resamples), state="measured", source=run.run
        ),
        Parameter(
            name="growth of other collectives",
            unit="of log2 ranks",
            draws=rng.uniform(0, 1, draws),
            state="assumed",
            source="trees and broadcasts take log2 N steps",
            reason=reason,
            measure=f"the same training on {2 * run.ranks:,} ranks",
        ),
    ]


def _timed(
    runs: Sequence[MeasuredRun],
    probes: Sequence[Probe],
    resamples: Mapping[int, NDArray[np.intp]],
    draws: int,
    rng: np.random.Generator,
) -> list[Timed]:
    of_runs = [
        links.of_run(run, resamples[id(run)])
        for run in runs
        if run.ranks > 1 and run.per_step and run.bucket_bytes is not None and run.bucket_bytes.sum() > 0
    ]
    of_probes = [
        links.of_probe(one.run, one.answer, one.hosts, draws, rng)
        for one in probes
        if one.answer.ranks > 1 and len(one.answer.results) > 1
    ]
    return [*of_runs, *of_probes]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Exchange:
    parameters: list[Parameter]
    algorithms: tuple[str, ...]
    algorithm: NDArray[np.intp]
    known_links: frozenset[str]
    notes: list[str]


def _exchange(
    timed: Sequence[Timed], run: MeasuredRun, stated_latency: Floats | None, draws: int, rng: np.random.Generator
) -> _Exchange:
    """The links, and which algorithm each draw has: any of those that explain the all-reduces equally well.

    ``stated_latency``: of a hop between hosts, with which the rate is fitted.
    """
    backends = [one.backend for one in timed] or [run.backend]
    candidates = links.algorithms_of(backends)
    by_link = {link: [one for one in timed if one.link == link] for link in (LOCAL, NETWORK)}
    local_ratio = rng.uniform(*links.local_ratios(backends), draws)
    known_latency = {NETWORK: stated_latency}
    fits = {
        name: {
            link: links.fitted(some, name, local_ratio, rng, known_latency.get(link))
            for link, some in by_link.items()
            if some
        }
        for name in candidates
    }
    misfits = {name: sum(one.misfit for one in fits[name].values()) for name in candidates}
    algorithms = tuple(name for name in candidates if misfits[name] <= min(misfits.values()) + links.FORM_TOLERANCE)
    algorithm = rng.integers(len(algorithms), size=draws)
    chosen = np.arange(draws)
    found: list[Parameter] = []
    for link, some in by_link.items():
        if not some:
            continue
        latency = np.stack([fits[name][link].latency_s for name in algorithms])[algorithm, chosen]
        s_per_byte = np.stack([fits[name][link].s_per_byte for name in algorithms])[algorithm, chosen]
        fit = links.Link(latency_s=latency, s_per_byte=s_per_byte, misfit=0.0)
        ranks, hosts = max((one.ranks, one.hosts) for one in some)
        command = (PROBE_NETWORK if link == NETWORK else PROBE_LOCAL).format(ranks=ranks, hosts=hosts)
        state = links.latency_state(some, algorithms[0])
        found += links.parameters(link, fit, state, ", ".join(one.source for one in some), command)
    names = {one.name for one in found}
    if f"{LOCAL} latency" not in names:
        between = next((one.draws for one in found if one.name == f"{NETWORK} latency"), _any_latency(draws, rng))
        found.append(
            Parameter(
                name=f"{LOCAL} latency",
                unit="s",
                draws=local_ratio * between,
                state="assumed",
                source=links.ratio_source(backends),
                reason="no run or probe is within one host",
                measure=PROBE_LOCAL.format(ranks=max(2, -(-run.ranks // run.hosts))),
            )
        )
    notes = []
    if len(algorithms) > 1:
        notes.append(f"the data cannot tell these algorithms of an all-reduce apart: {', '.join(algorithms)}")
    known = frozenset(link for link in (LOCAL, NETWORK) if any(one.name == f"{link} time per byte" for one in found))
    return _Exchange(parameters=found, algorithms=algorithms, algorithm=algorithm, known_links=known, notes=notes)


def _with_stated(fit: Calibration, stated: Stated, latency: Floats | None, rng: np.random.Generator) -> Calibration:
    """``fit`` with stated facts in place of what was measured between hosts, and notes on what they replace.

    ``latency`` (draws,): as stated. Of NCCL, a hop between hosts of which nothing is known takes what one within a host
    was measured to take, times their ratio in NCCL's table.
    """
    draws = fit.algorithm.size
    new: list[Parameter] = []
    if stated.link_bytes_per_s is not None:
        new.append(
            Parameter(
                name=f"{NETWORK} time per byte",
                unit="s/byte",
                draws=links.stated_rate(stated.link_bytes_per_s, draws, rng),
                state="assumed",
                source="stated",
                reason="the rate of a link is stated; how much of it an all-reduce reaches is not",
                measure=PROBE_NETWORK.format(ranks=2, hosts=2),
            )
        )
    if latency is not None:
        new.append(_hop(latency, "stated", "a latency is stated; what an all-reduce adds to it is not"))
    elif stated.link_bytes_per_s is not None and f"{NETWORK} latency" not in fit.parameters:
        local = fit.parameters.by_name[f"{LOCAL} latency"]
        if local.state != "assumed" and {run.backend for run in fit.runs} == {"nccl"}:
            ratio = rng.uniform(*links.local_ratios(["nccl"]), draws)
            scaled = np.maximum(local.draws / ratio, links.LEAST_HOP_S[NETWORK])
            new.append(_hop(scaled, "local latency, by its ratio in NCCL's tuning.cc", "no latency is stated"))
        else:
            new.append(_hop(_any_latency(draws, rng), "from RDMA to TCP", "no latency is stated"))
    before = fit.parameters.by_name
    notes = [
        f"{one.name}: what is stated is used, not what {before[one.name].source} measured"
        for one in new
        if one.name in before
    ]
    return replace(
        fit,
        parameters=Parameters(by_name={**before, **{one.name: one for one in new}}),
        known_links=fit.known_links | ({NETWORK} if stated.link_bytes_per_s is not None else set()),
        notes=(*fit.notes, *notes),
    )


def _hop(draws: Floats, source: str, reason: str) -> Parameter:
    """An assumed latency of a hop between hosts."""
    return Parameter(
        name=f"{NETWORK} latency",
        unit="s",
        draws=draws,
        state="assumed",
        source=source,
        reason=reason,
        measure=PROBE_NETWORK.format(ranks=2, hosts=2),
    )


def _any_latency(draws: int, rng: np.random.Generator) -> Floats:
    """A hop between hosts of which nothing is known, (draws,): from RDMA to TCP, evenly in its logarithm."""
    return np.exp(rng.uniform(math.log(links.LEAST_HOP_S[NETWORK]), math.log(MOST_LATENCY_S), draws))
