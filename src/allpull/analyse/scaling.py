"""Speed-up, efficiency and the kind of scaling of several runs.

Speed-up is a ratio of throughputs, S = A ÷ B, so it means the same for weak and for strong scaling. Its interval
combines those of A and B on the log scale by the method of variance estimates recovery (Zou & Donner 2008, Statistics
in Medicine 27; for ratios Donner & Zou 2010, Statistical Methods in Medical Research)::

    ln low  = ln S − √((ln A − ln A_low)²  + (ln B_high − ln B)²)
    ln high = ln S + √((ln A_high − ln A)² + (ln B − ln B_low)²)

which is the delta method where both are symmetric, and keeps their skew where they are not. The runs are taken as
independent; a common cause (a machine that was slow all day) is in neither interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.programs import decides_work, flat
from allpull.analyse.run import metrics
from allpull.rundir.read.run import RunData
from allpull.schema.base import tag
from allpull.schema.epochs import EpochSpeedup, EpochTime
from allpull.schema.precision import PrecisionRatio
from allpull.schema.results import Interval, RunMetrics, Scaling, ShowResult
from allpull.units import show_count

EQUAL = 0.01  # batches within 1 % are meant to be the same: shards differ by a sample
SAMPLE_FACTS = ("model", "data")  # parts of a specification that are compared
PRECISIONS = ("fp32", "tf32", "bf16", "bfloat16", "fp16", "float16", "o2")  # the most exact first
MAX_SHOWN = 40  # characters of one differing fact in a note


def in_order(runs: Sequence[AlignedRun]) -> list[AlignedRun]:
    """``runs`` by ranks, then by the time they were created, then by id: the order of the scaling table."""
    return sorted(runs, key=_place)


def scaling_table(runs: Sequence[AlignedRun], accuracy: float | None = None) -> ShowResult:
    """Metrics of all ``runs``, ``in_order``, each against the one with fewest ranks; notes name unfair comparisons.

    ``accuracy``: as for ``analyse.run.metrics``.
    """
    ordered = in_order(runs)
    return table([metrics(run, accuracy) for run in ordered], [facts(run.data) for run in ordered])


def facts(run: RunData) -> dict[str, str]:
    """What must be equal between runs whose throughputs are compared, by name.

    It is the model and data (keys of the specification), the arithmetic among them; threads of a rank; torch; and
    the kinds of hosts. A fact that the run does not state is left out.
    """
    spec = run.record.spec
    settings: dict[str, str] = {}
    for part in SAMPLE_FACTS:
        settings |= flat(spec.get(part), part)
    if run.record.threads_per_rank is not None:
        settings["threads_per_rank"] = str(run.record.threads_per_rank)
    torch = run.record.versions.get("torch")
    if torch is not None:
        settings["torch"] = torch
    if run.hosts:
        settings["kinds of hosts"] = ", ".join(sorted({host.fingerprint for host in run.hosts}))
    return settings


def table(runs: Sequence[RunMetrics], facts: Sequence[Mapping[str, str]]) -> ShowResult:
    """``runs`` in their order, with speed-up and efficiency against the reference, and what to note.

    The reference of a run is of its own precision, and has the fewest ranks of those with a throughput, the first of
    them where there are several: 16-bit arithmetic on one rank is no scaling.
    ``facts`` has one mapping for each run: what must be equal for a fair comparison, by name.
    """
    if len(runs) < 2:
        return ShowResult(schema=tag("show"), runs=list(runs), reference=None, scaling=None, notes=[])
    references = {name: _reference([run for run in runs if run.precision == name]) for name in _by_exactness(runs)}
    reference = next((one for one in references.values() if one is not None), None)
    basis = facts[runs.index(reference)] if reference else {}
    scaled = [
        _against(run, references[run.precision]) if _same_work(own, basis) else run
        for run, own in zip(runs, facts, strict=True)
    ]
    notes = [
        *_notes_on_reference(runs, references),
        *_notes_on_fairness(runs, facts),
        *_notes_on_repeats(runs),
        *_notes_on_superlinear(scaled),
        *_notes_on_epochs(scaled),
    ]
    return ShowResult(
        schema=tag("show"),
        runs=scaled,
        reference=reference.run if reference else None,
        scaling=kind(runs),
        notes=notes,
        precisions=list(precision_ratios(runs)),
    )


def precision_ratios(runs: Sequence[RunMetrics]) -> Iterator[PrecisionRatio]:
    """At each number of ranks and hosts, the throughput of each precision over that of the most exact one there."""
    for size in sorted({(run.ranks, run.hosts) for run in runs}):
        rates = {name: _rates(runs, size, name) for name in _by_exactness(runs) if name is not None}
        exact, *others = [(name, own) for name, own in rates.items() if own] or [("", [])]
        for name, own in others:
            found = ratio(_mean_rate(own), _mean_rate(exact[1]))
            if found is not None:
                run_ids = [run.run for run in (*own, *exact[1])]
                yield PrecisionRatio(ranks=size[0], precision=name, over=exact[0], ratio=found, runs=run_ids)


def ratio(top: Interval, bottom: Interval) -> Interval | None:
    """``top`` ÷ ``bottom`` of two independent runs, with its interval; None where that is no number.

    >>> found = ratio(Interval(value=20, low=16, high=25), Interval(value=10, low=10, high=10))
    >>> found.value, round(found.low, 9), round(found.high, 9)
    (2.0, 1.6, 2.5)
    """
    if not (top.value > 0 and bottom.value > 0):
        return None
    value = top.value / bottom.value
    down = _hypotenuse(_log_ratio(top.value, top.low), _log_ratio(bottom.high, bottom.value))
    up = _hypotenuse(_log_ratio(top.high, top.value), _log_ratio(bottom.value, bottom.low))
    if down is None or up is None:
        return Interval(value=value, low=None, high=None)
    return Interval(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def kind(runs: Sequence[RunMetrics]) -> Scaling | None:
    """Weak where all runs have the same samples per rank and step, strong where they have the same global batch.

    The configured batch decides where every run states it (the last batch of an epoch is often ragged, and
    differently so at each size); else what was measured. Mixed is neither; None where sizes are unknown or all equal.
    """
    if len({run.ranks for run in runs}) < 2:
        return None
    configured = [run.global_batch for run in runs if run.global_batch is not None]
    measured = [run.samples_per_rank_step * run.ranks for run in runs if run.samples_per_rank_step is not None]
    batches: Sequence[float] = configured if len(configured) == len(runs) else measured
    if len(batches) < len(runs):
        return None
    if _all_equal([batch / run.ranks for batch, run in zip(batches, runs, strict=True)]):
        return "weak"
    return "strong" if _all_equal(batches) else "mixed"


def _place(run: AlignedRun) -> tuple[int, str, str]:
    record = run.data.record
    return record.ranks, record.created_utc, record.id


def _same_work(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a sample of both runs is the same work: the same network, arithmetic and data."""
    return all(one.get(name) == other.get(name) for name in (*one, *other) if decides_work(name))


def _reference(runs: Sequence[RunMetrics]) -> RunMetrics | None:
    return min((run for run in runs if run.throughput is not None), key=lambda run: run.ranks, default=None)


def _by_exactness(runs: Sequence[RunMetrics]) -> list[str | None]:
    """The precisions of ``runs``, the most exact first; those that are not known by name last."""
    names = dict.fromkeys(run.precision for run in runs)
    return sorted(names, key=lambda name: PRECISIONS.index(name) if name in PRECISIONS else len(PRECISIONS))


def _rates(runs: Sequence[RunMetrics], size: tuple[int, int], precision: str) -> list[RunMetrics]:
    return [
        run
        for run in runs
        if (run.ranks, run.hosts) == size and run.precision == precision and run.throughput is not None
    ]


def _mean_rate(runs: Sequence[RunMetrics]) -> Interval:
    """The geometric mean of the throughputs of ``runs``; its interval from theirs, taken as independent."""
    rates = [run.throughput for run in runs if run.throughput is not None]
    value = math.exp(sum(math.log(rate.value) for rate in rates) / len(rates))
    downs = [_log_ratio(rate.value, rate.low) for rate in rates]
    ups = [_log_ratio(rate.high, rate.value) for rate in rates]
    down, up = (None if None in widths else math.hypot(*filter(None, widths)) / len(rates) for widths in (downs, ups))
    if down is None or up is None:
        return Interval(value=value, low=None, high=None)
    return Interval(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def _against(run: RunMetrics, reference: RunMetrics | None) -> RunMetrics:
    if reference is None or reference.throughput is None or run.throughput is None:
        return run
    one = Interval(value=1.0, low=1.0, high=1.0)  # a run against itself, by definition
    speedup = one if run is reference else ratio(run.throughput, reference.throughput)
    if speedup is None:
        return run
    ideal = run.ranks / reference.ranks
    efficiency = speedup.scaled(1 / ideal)
    return run.model_copy(
        update={
            "reference": reference.run,
            "speedup": speedup.value,
            "speedup_interval": speedup,
            "efficiency": efficiency.value,
            "efficiency_interval": efficiency,
            "epoch_speedup": _epoch_speedup(run, reference),
        }
    )


def _epoch_speedup(run: RunMetrics, reference: RunMetrics) -> EpochSpeedup | None:
    """By epoch times and rates; a ratio of times is None where the trainings differ in what an epoch is."""
    if run.epoch_s is None or reference.epoch_s is None:
        return None
    is_same_epoch = _same_epoch(run, reference)
    has_same_end = is_same_epoch and len(run.epoch_s.each) == len(reference.epoch_s.each)
    own, base = run.time_to_accuracy, reference.time_to_accuracy
    is_same_goal = own is not None and base is not None and (own.metric, own.wanted) == (base.metric, base.wanted)
    return EpochSpeedup(
        epoch=ratio(_total(reference.epoch_s), _total(run.epoch_s)) if is_same_epoch else None,
        time_to_solution=_quotient(reference.time_to_solution_s, run.time_to_solution_s) if has_same_end else None,
        time_to_accuracy=_quotient(base.time_s, own.time_s) if is_same_goal and own and base else None,
        training_rate=_quotient(run.training_samples_per_s, reference.training_samples_per_s),
        overall_rate=_quotient(run.overall_samples_per_s, reference.overall_samples_per_s),
    )


def _same_epoch(run: RunMetrics, reference: RunMetrics) -> bool:
    """Whether epochs of both have as many samples; the mean epoch of each, as last batches may be dropped."""
    means = [
        sum(one.samples for one in own if one.samples is not None) / len(own)
        for own in ([] if time is None else time.each for time in (run.epoch_s, reference.epoch_s))
        if own and all(one.samples is not None for one in own)
    ]
    return len(means) == 2 and _all_equal(means)


def _total(time: EpochTime) -> Interval:
    return time.interval or Interval(value=time.total, low=None, high=None)


def _quotient(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def _notes_on_reference(
    runs: Sequence[RunMetrics], references: Mapping[str | None, RunMetrics | None]
) -> Iterator[str]:
    if all(reference is None for reference in references.values()):
        yield "no run has a throughput: no speed-up"
        return
    without = [run for run in runs if run.throughput is None]
    if without:
        yield f"no speed-up for {_some([run.run for run in without])}: no throughput was measured there"
    several = sum(reference is not None for reference in references.values()) > 1
    if several:
        names = _some([name or "not recorded" for name, one in references.items() if one is not None])
        yield f"each precision ({names}) has a reference of its own: its run with the fewest ranks"
    for name, reference in references.items():
        if reference is None:
            continue
        own = [run for run in runs if run.precision == name]
        of = f" of {name or 'unknown precision'}" if several else ""
        if any(run.ranks < reference.ranks for run in own if run.throughput is None):
            yield f"the reference{of} is {reference.run}, the smallest run with a throughput"
        equals = sum(run.ranks == reference.ranks and run.throughput is not None for run in own)
        if equals > 1:
            which = f"{equals} runs{of} have {_ranks(reference.ranks)}"
            yield f"{which}; the first of them, {reference.run}, is the reference"


def _notes_on_fairness(runs: Sequence[RunMetrics], facts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    differing: dict[str, str] = {}
    for name in sorted({name for own in facts for name in own}):
        values = list(dict.fromkeys(own.get(name, "not set")[:MAX_SHOWN] for own in facts))
        if len(values) > 1:
            differing[name] = f"{name} ({_some(values)})"
    if differing:
        yield f"these {len(runs)} runs cannot be compared fairly: they differ in {'; '.join(differing.values())}"
        if any(decides_work(name) for name in differing):
            yield "runs with another network or other data than the reference have no speed-up: a sample differs"


def _notes_on_repeats(runs: Sequence[RunMetrics]) -> Iterator[str]:
    several = len({run.precision for run in runs}) > 1
    sizes = Counter((run.ranks, run.precision) for run in runs)
    for (ranks, name), count in sorted(sizes.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        own = [run for run in runs if (run.ranks, run.precision) == (ranks, name)]
        rates = [run.throughput.value for run in own if run.throughput is not None]
        if count > 1 and len(rates) > 1:
            between = f"between {show_count(min(rates))} and {show_count(max(rates))} samples/s"
            of = f" of {name or 'unknown precision'}" if several else ""
            yield f"{count} runs{of} have {_ranks(ranks)}: {between}; each has its own row"


def _notes_on_epochs(runs: Sequence[RunMetrics]) -> Iterator[str]:
    differing = [run.run for run in runs if run.epoch_speedup is not None and run.epoch_speedup.epoch is None]
    if differing:
        yield f"no speed-up by epoch time for {_some(differing)}: its epochs have other samples than the reference's"


def _notes_on_superlinear(runs: Sequence[RunMetrics]) -> Iterator[str]:
    ranks = {run.run: run.ranks for run in runs}
    for run in runs:
        interval = run.efficiency_interval
        if run.reference is not None and ranks.get(run.reference) == run.ranks:
            continue  # nothing was scaled
        if interval is None or interval.low is None or interval.high is None or interval.low <= 1:
            continue
        yield (
            f"{_ranks(run.ranks)} ({run.run}) scale superlinearly: efficiency {interval.value:.3g}, 95 % interval "
            f"{interval.low:.3g} to {interval.high:.3g}. Possible reasons: data or weights that now fit a cache, "
            "more memory for each rank, another batch per rank, or a reference that was itself disturbed"
        )


def _log_ratio(large: float | None, small: float | None) -> float | None:
    if large is None or small is None or not (large > 0 and small > 0):
        return None
    return math.log(large / small)


def _hypotenuse(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else math.hypot(one, other)


def _all_equal(values: Sequence[float]) -> bool:
    return max(values) <= min(values) * (1 + EQUAL)


def _ranks(count: int) -> str:
    return f"{count:,} rank{'s' if count != 1 else ''}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
