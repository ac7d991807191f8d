"""What if the job were different: KEY=VALUE changes the job or the parameters, and a waterfall shows what that gains.

A change is of the model alone, so it holds as far as the model does. Nothing that a change does not name changes: a
compressed gradient costs nothing to compress, a faster device waits as long for its input as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.errors import BadInput, UnknownName
from allpull.predict import forecast as forecasts
from allpull.predict.calibration.calibrated import Calibration
from allpull.predict.calibration.parameters import Floats
from allpull.predict.job import Job
from allpull.predict.terms.algorithms import ALGORITHMS
from allpull.predict.terms.compute import Compute
from allpull.predict.terms.periodic import Division
from allpull.schema.forecast import WhatIf
from allpull.units import parse_bytes, parse_time_s

MOST_TIMES = 1e6  # of a factor: beyond, a term is as good as gone
HALF = 2.0  # fp16 for fp32

Changed = tuple[Job, Calibration]


class _Contradiction(Exception):
    """The change does not fit the job; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What can be changed: the form of its values, what it means, and the change."""

    form: str
    meaning: str
    change: Callable[[str, Job, Calibration], Changed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One what-if: settings that are made together."""

    text: str
    settings: tuple[tuple[str, str], ...]


def parsed(text: str) -> Change:
    """``KEY=VALUE``, or several that are made together: ``KEY=VALUE,KEY=VALUE``.

    Raises:
        BadInput: it has another form.
        UnknownName: there is no such key.
    """
    settings = []
    for one in text.split(","):
        key, equals, value = (part.strip() for part in one.partition("="))
        if not equals or not value:
            raise BadInput(
                f"--what-if {text!r}: not KEY=VALUE", hint="such as --what-if link=x2; keys: " + ", ".join(KEYS)
            )
        if key not in KEYS:
            raise UnknownName("what-if", key, KEYS)
        settings.append((key, value))
    if len({key for key, _ in settings}) < len(settings):
        raise BadInput(f"--what-if {text!r}: a key is set twice")
    return Change(text=text, settings=tuple(settings))


def changed(change: Change, job: Job, calibration: Calibration) -> Changed:
    """``job`` and ``calibration`` after ``change``.

    Raises:
        BadInput: a value is none of its key, or contradicts the job.
    """
    for key, value in change.settings:
        try:
            job, calibration = KEYS[key].change(value, job, calibration)
        except _Contradiction as contradiction:
            raise BadInput(f"--what-if {key}={value}: {contradiction}") from None
    reason = forecasts.refusal(job, calibration)
    if reason is not None:
        raise BadInput(f"--what-if {change.text}: {reason}")
    return job, calibration


def what_if(change: Change, base: forecasts.Forecast, calibration: Calibration) -> WhatIf:
    """The waterfall from ``base`` to the same job after ``change``.

    Raises:
        BadInput: a value is none of its key, or contradicts the job.
    """
    job, other = changed(change, base.job, calibration)
    after = forecasts.forecast(job, other)
    before_s, after_s = forecasts.terms_of(base.terms), forecasts.terms_of(after.terms)
    return WhatIf(
        change=change.text,
        ranks=job.ranks,
        hosts=job.hosts,
        step_s=forecasts.of_seconds(after.step_s),
        throughput=forecasts.of_rate(job.global_batch / after.step_s),
        change_s={
            name: after_s.get(name, 0.0) - before_s.get(name, 0.0) for name in dict.fromkeys([*before_s, *after_s])
        },
        bottleneck=after.bottleneck,
        epoch=forecasts.epoch(after),
    )


def waterfall(texts: Sequence[str], made: Sequence[forecasts.Forecast], calibration: Calibration) -> list[WhatIf]:
    """Every change of ``texts`` for every forecast.

    Raises:
        BadInput: one is no change, or does not fit one of the jobs.
    """
    changes = [parsed(text) for text in texts]
    return [what_if(change, one, calibration) for one in made for change in changes]


def rebucketed(size_bytes: Floats, lead_s: Floats, cap_bytes: float) -> tuple[Floats, Floats]:
    """Sizes (buckets',) and leads (draws, looks, buckets') of the same gradients in buckets of ``cap_bytes``.

    Bytes are assumed to become ready evenly between the moments at which the recorded buckets did, those of the first
    bucket at the mean pace of the others.

    Raises:
        ValueError: a single bucket shows no pace.
    """
    total, first = float(size_bytes.sum()), float(size_bytes[0])
    if size_bytes.size < 2:
        raise ValueError("one bucket does not show how gradients become ready")
    pace = (lead_s[..., :1] - lead_s[..., -1:]) / (total - first)
    edges = np.concatenate([[0.0], np.cumsum(size_bytes)])
    at_edges = np.concatenate([lead_s[..., :1] + pace * first, lead_s], axis=-1)
    cuts = np.append(np.arange(cap_bytes, total, cap_bytes), total)
    after = np.clip(np.searchsorted(edges, cuts), 1, size_bytes.size)
    share = (cuts - edges[after - 1]) / np.maximum(edges[after] - edges[after - 1], 1.0)
    leads: Floats = at_edges[..., after - 1] * (1 - share) + at_edges[..., after] * share
    return np.diff(cuts, prepend=0.0), leads


def _factor(text: str) -> float:
    """The number of ``x2``, ``2x`` or ``2``."""
    number = text.removeprefix("x").removesuffix("x")
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not 1 / MOST_TIMES <= factor <= MOST_TIMES:
        raise _Contradiction("a factor is a number above 0, such as x2 or x0.5")
    return factor


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_TIMES):
        raise _Contradiction("a whole number, 1 or more, is needed")
    return int(text)


def _chosen(text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise _Contradiction(f"the value is one of: {', '.join(known)}")
    return text


def _exchanges(job: Job) -> None:
    if job.ranks == 1:
        raise _Contradiction("one rank exchanges nothing")


def _scaled(calibration: Calibration, name: str, factor: float) -> Calibration:
    if name not in calibration.parameters:
        raise _Contradiction(f"the {name} is not known")
    parameters = calibration.parameters
    return replace(calibration, parameters=parameters.replaced(name, parameters[name] * factor))


def _between_hosts(job: Job) -> None:
    if job.hosts == 1:
        raise _Contradiction("all ranks are on one host: nothing crosses the link between hosts")


def _link(text: str, job: Job, calibration: Calibration) -> Changed:
    _between_hosts(job)
    return job, _scaled(calibration, "network time per byte", 1 / _factor(text))


def _latency(text: str, job: Job, calibration: Calibration) -> Changed:
    _between_hosts(job)
    if "x" in text:
        return job, _scaled(calibration, "network latency", _factor(text))
    try:
        latency_s = parse_time_s(text)
    except BadInput as error:
        raise _Contradiction(f"{error.message}; a time such as 20us, or a factor such as x0.5, is needed") from None
    if latency_s < 0:
        raise _Contradiction("a latency is not negative")
    _scaled(calibration, "network latency", 1.0)
    before = calibration.parameters["network latency"]
    return job, replace(
        calibration, parameters=calibration.parameters.replaced("network latency", np.full_like(before, latency_s))
    )


def _hosts(text: str, job: Job, calibration: Calibration) -> Changed:
    return replace(job, hosts=_count(text)), calibration


def _ranks_per_host(text: str, job: Job, calibration: Calibration) -> Changed:
    return replace(job, hosts=-(-job.ranks // _count(text))), calibration


def _batch(text: str, job: Job, calibration: Calibration) -> Changed:
    return replace(job, batch=float(_count(text))), calibration


def _accumulation(text: str, job: Job, calibration: Calibration) -> Changed:
    """More backward passes per reduction: work grows with them, but for that of the optimizer.

    What is ready before the last gradient does not grow. Of lateness, what is random grows with the root of the number
    of passes, what a slow rank adds with the number.
    """
    times = _count(text)
    compute = calibration.compute
    once_s = float(calibration.largest.optimizer_s.mean())
    longer = Compute(
        fixed_s=compute.fixed_s * times - once_s * (times - 1),
        s_per_sample=compute.s_per_sample,
        batches=tuple(one * times for one in compute.batches),
    )
    assert calibration.largest.batch is not None
    largest = replace(calibration.largest, batch=calibration.largest.batch * times)
    lateness = calibration.lateness
    later = lateness.times(times**0.5 if lateness.balanced is None else float(times))
    job = replace(job, batch=job.batch * times, accumulation=job.accumulation * times)
    return job, replace(calibration, compute=longer, largest=largest, lateness=later)


def _bucket(text: str, job: Job, calibration: Calibration) -> Changed:
    _exchanges(job)
    try:
        cap = parse_bytes(text)
    except BadInput as error:
        raise _Contradiction(f"{error.message}; a size such as 25MiB is needed") from None
    total = sum(job.bucket_bytes)
    if not total:
        raise _Contradiction("the sizes of the buckets are not known")
    if cap < 1 or total / cap > 10_000:
        raise _Contradiction("that would be more than 10,000 buckets")
    try:
        sizes, lead_s = rebucketed(np.array(job.bucket_bytes, dtype=np.float64), calibration.lead_s, float(cap))
    except ValueError as error:
        raise _Contradiction(str(error)) from None
    return replace(job, bucket_bytes=tuple(round(one) for one in sizes.tolist())), replace(calibration, lead_s=lead_s)


def _compress(text: str, job: Job, calibration: Calibration) -> Changed:
    _exchanges(job)
    ratio = HALF if text in {"fp16", "bf16"} else _factor(text)
    if ratio < 1:
        raise _Contradiction("a ratio below 1 makes gradients larger; fp16, bf16 or a ratio such as x4 is needed")
    return replace(job, bucket_bytes=tuple(max(round(one / ratio), 1) for one in job.bucket_bytes)), calibration


def _algorithm(text: str, job: Job, calibration: Calibration) -> Changed:
    _exchanges(job)
    name = _chosen("two-level" if text == "hierarchical" else text, tuple(ALGORITHMS))
    return job, replace(calibration, algorithms=(name,), algorithm=np.zeros_like(calibration.algorithm))


def _slow_rank(text: str, job: Job, calibration: Calibration) -> Changed:
    _exchanges(job)
    _chosen(text, ("removed",))
    balanced = calibration.lateness.balanced
    if balanced is None:
        raise _Contradiction("no rank of the run is persistently slow")
    faster = float(np.median(balanced.work_s / calibration.lateness.work_s))  # the mean rank has less work as well
    lead_s = calibration.balanced_lead_s
    return job, replace(_with_compute(calibration, faster), lateness=balanced, lead_s=lead_s)


def _overlap(text: str, job: Job, calibration: Calibration) -> Changed:
    """All gradients are ready when the work of the step begins, so that the exchange overlaps all of it."""
    _exchanges(job)
    _chosen(text, ("perfect",))
    assert calibration.largest.batch is not None
    work_s = calibration.compute.seconds(calibration.largest.batch)
    return job, replace(calibration, lead_s=np.broadcast_to(work_s[:, None, None], calibration.lead_s.shape))


def _device(text: str, job: Job, calibration: Calibration) -> Changed:
    factor = 1 / _factor(text)
    return job, replace(_with_compute(calibration, factor), lead_s=calibration.lead_s * factor)


def _workers(text: str, job: Job, calibration: Calibration) -> Changed:
    """A rank's loader shares its batches evenly among its workers, as far as there are cores for them."""
    if "input per batch" not in calibration.parameters and calibration.input is None:
        raise _Contradiction("the run hardly waits for input: what its loader could do is not known")
    if job.workers is None:
        raise _Contradiction("how many workers the loader of the run has is not known")
    return replace(job, workers=_count(text)), calibration


def _decode(text: str, job: Job, calibration: Calibration) -> Changed:
    """Workers and cores prepare samples faster; storage does not."""
    factor, limits = _factor(text), calibration.input
    if limits is None or (limits.worker is None and limits.cores is None):
        raise _Contradiction("how fast the loader decodes is not known: add --probe of allpull probe loader")
    faster = {
        name: None if limit is None else limit.times(factor)
        for name, limit in (("worker", limits.worker), ("cores", limits.cores))
    }
    other = replace(calibration, input=replace(limits, worker=faster["worker"], cores=faster["cores"]))
    return job, _with_own_input(other, 1 / factor)


def _cache(text: str, job: Job, calibration: Calibration) -> Changed:
    _chosen(text, ("all",))
    limits = calibration.input
    if limits is None or (limits.shared is None and limits.disk is None):
        raise _Contradiction("how fast storage is is not known: add --probe of allpull probe loader and storage")
    return job, _with_own_input(replace(calibration, input=replace(limits, shared=None, disk=None)), 0.0)


def _with_own_input(calibration: Calibration, factor: float) -> Calibration:
    """What the run itself needed per batch, ``factor`` times as long: the limits that probes show remain below it."""
    name = "input per batch"
    return _scaled(calibration, name, factor) if name in calibration.parameters else calibration


def _evaluation(text: str, job: Job, calibration: Calibration) -> Changed:
    division: Division = "serial" if _chosen(text, ("parallel", "serial")) == "serial" else "sharded"
    if "evaluation" not in calibration.events or job.samples_per_epoch is None:
        raise _Contradiction("no run has a complete epoch with an evaluation")
    events = {**calibration.events, "evaluation": calibration.events["evaluation"].divided(division)}
    return job, replace(calibration, events=events)


def _with_compute(calibration: Calibration, factor: float) -> Calibration:
    compute = calibration.compute
    return replace(
        calibration,
        compute=replace(compute, fixed_s=compute.fixed_s * factor, s_per_sample=compute.s_per_sample * factor),
    )


KEYS: dict[str, Key] = {
    "link": Key(form="xK", meaning="bytes cross the link between hosts K times as fast", change=_link),
    "latency": Key(form="TIME or xK", meaning="latency of a hop between hosts", change=_latency),
    "hosts": Key(form="N", meaning="the same ranks on N hosts", change=_hosts),
    "ranks-per-host": Key(form="N", meaning="the same ranks, N on each host", change=_ranks_per_host),
    "batch": Key(form="N", meaning="samples per rank and step", change=_batch),
    "accumulation": Key(form="N", meaning="N times as many backward passes per reduction", change=_accumulation),
    "bucket": Key(form="SIZE", meaning="gradients in buckets of SIZE, in the order they become ready", change=_bucket),
    "compress": Key(form="fp16, bf16 or xR", meaning="gradients of half, or 1/R, of the bytes", change=_compress),
    "algorithm": Key(form="NAME", meaning=f"all-reduce: {', '.join(ALGORITHMS)} (hierarchical)", change=_algorithm),
    "slow-rank": Key(form="removed", meaning="no rank is persistently slower than the others", change=_slow_rank),
    "overlap": Key(form="perfect", meaning="the exchange overlaps all of the work of a step", change=_overlap),
    "workers": Key(form="N", meaning="workers of each rank's loader", change=_workers),
    "decode": Key(form="xK", meaning="the loader prepares samples K times as fast; storage does not", change=_decode),
    "cache": Key(form="all", meaning="all files are in the page caches of their hosts", change=_cache),
    "evaluation": Key(form="parallel or serial", meaning="on all ranks, or on one of them", change=_evaluation),
    "device": Key(form="xK", meaning="compute is K times as fast, nothing else", change=_device),
}
"""Everything that can be changed."""
