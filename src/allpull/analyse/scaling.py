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
from allpull.schema.results import Interval, RunMetrics, Scaling, ShowResult
from allpull.units import show_count

EQUAL = 0.01  # batches within 1 % are meant to be the same: shards differ by a sample
SAMPLE_FACTS = ("model", "data")  # parts of a specification that are compared
MAX_SHOWN = 40  # characters of one differing fact in a note


def in_order(runs: Sequence[AlignedRun]) -> list[AlignedRun]:
    """``runs`` by ranks, then by the time they were created, then by id: the order of the scaling table."""
    return sorted(runs, key=_place)


def scaling_table(runs: Sequence[AlignedRun]) -> ShowResult:
    """Metrics of all ``runs``, ``in_order``, each against the one with fewest ranks; notes name unfair comparisons."""
    ordered = in_order(runs)
    return table([metrics(run) for run in ordered], [facts(run.data) for run in ordered])


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

    The reference has the fewest ranks of those with a throughput, the first of them where there are several.
    ``facts`` has one mapping for each run: what must be equal for a fair comparison, by name.
    """
    reference = _reference(runs)
    if len(runs) < 2:
        return ShowResult(schema=tag("show"), runs=list(runs), reference=None, scaling=None, notes=[])
    basis = facts[runs.index(reference)] if reference else {}
    scaled = [_against(run, reference) if _same_work(own, basis) else run for run, own in zip(runs, facts, strict=True)]
    notes = [
        *_notes_on_reference(runs, reference),
        *_notes_on_fairness(runs, facts),
        *_notes_on_repeats(runs),
        *_notes_on_superlinear(scaled),
    ]
    return ShowResult(
        schema=tag("show"), runs=scaled, reference=reference.run if reference else None, scaling=kind(runs), notes=notes
    )


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


def _against(run: RunMetrics, reference: RunMetrics | None) -> RunMetrics:
    if reference is None or reference.throughput is None or run.throughput is None:
        return run
    one = Interval(value=1.0, low=1.0, high=1.0)  # a run against itself, by definition
    speedup = one if run is reference else ratio(run.throughput, reference.throughput)
    if speedup is None:
        return run
    ideal = run.ranks / reference.ranks
    efficiency = _scaled(speedup, 1 / ideal)
    return run.model_copy(
        update={
            "speedup": speedup.value,
            "speedup_interval": speedup,
            "efficiency": efficiency.value,
            "efficiency_interval": efficiency,
        }
    )


def _notes_on_reference(runs: Sequence[RunMetrics], reference: RunMetrics | None) -> Iterator[str]:
    if reference is None:
        yield "no run has a throughput: no speed-up"
        return
    without = [run for run in runs if run.throughput is None]
    if without:
        yield f"no speed-up for {_some([run.run for run in without])}: no throughput was measured there"
    if any(run.ranks < reference.ranks for run in without):
        yield f"the reference is {reference.run}, the smallest run with a throughput"
    equals = sum(run.ranks == reference.ranks and run.throughput is not None for run in runs)
    if equals > 1:
        yield f"{equals} runs have {_ranks(reference.ranks)}; the first of them, {reference.run}, is the reference"


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
    for ranks, count in sorted(Counter(run.ranks for run in runs).items()):
        rates = [run.throughput.value for run in runs if run.ranks == ranks and run.throughput is not None]
        if count > 1 and len(rates) > 1:
            between = f"between {show_count(min(rates))} and {show_count(max(rates))} samples/s"
            yield f"{count} runs have {_ranks(ranks)}: {between}; each has its own row"


def _notes_on_superlinear(runs: Sequence[RunMetrics]) -> Iterator[str]:
    for run in runs:
        interval = run.efficiency_interval
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


def _scaled(interval: Interval, factor: float) -> Interval:
    low = None if interval.low is None else interval.low * factor
    high = None if interval.high is None else interval.high * factor
    return Interval(value=interval.value * factor, low=low, high=high)


def _all_equal(values: Sequence[float]) -> bool:
    return max(values) <= min(values) * (1 + EQUAL)


def _ranks(count: int) -> str:
    return f"{count:,} rank{'s' if count != 1 else ''}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
