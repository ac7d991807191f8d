"""Compare two sides of runs: what changed, by how much, how certain that is, and whether gates pass."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allpull.analyse.effect import CONFIDENCE, Effect, Measured, effect
from allpull.compare.caveats import Side, caveats
from allpull.compare.comparability import check_comparable, differences
from allpull.compare.gate import Gate, judge
from allpull.compare.known_variation import KnownVariation
from allpull.compare.measured_run import MeasuredRun
from allpull.compare.metrics import EPOCH_TIMES, METRICS, Measures, Metric
from allpull.compare.remedy_follow_up import appeared, follow_up
from allpull.errors import BadInput
from allpull.schema.base import tag
from allpull.schema.compared import Change, ComparedRun, CompareResult, Decision
from allpull.schema.explained import ExplainResult
from allpull.schema.results import Interval

DEFAULT_METRICS = ("throughput", "step_s")
"""The decision rests on the first of these that both sides have, unless metrics are requested."""

SPEEDUP = "throughput_with_pauses"
"""`explain` predicts a speed-up of the whole training, pauses included."""

RAGGED = 0.05  # by which the samples of epochs may differ: last batches that are cut or filled up

ROUNDING = 1e-12  # relative, or seconds: a smaller difference is below what any clock resolves

OPPOSITE: Mapping[str, Decision] = {"faster": "slower", "slower": "faster", "better": "worse", "worse": "better"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to compare.

    ``metrics``: only these, and the first of them decides; empty: all. ``known_variation`` is that between runs.
    ``anyway``: compare runs whose key facts disagree, too.
    """

    metrics: Sequence[str] = ()
    gates: Sequence[Gate] = ()
    known_variation: KnownVariation | None = None
    anyway: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The runs of both sides."""

    before: Sequence[MeasuredRun]
    after: Sequence[MeasuredRun]


def compare(sides: Sides, options: Options) -> CompareResult:
    """Compare both sides.

    Raises:
        BadInput: a side is empty or lists a run twice, key facts do not agree, or a metric was not measured.
    """
    check_repeats(sides)
    facts_before, facts_after = ([run.facts for run in side] for side in (sides.before, sides.after))
    differing = differences(facts_before, facts_after)
    notes = check_comparable(facts_before, facts_after, differing, anyway=options.anyway)
    before, after, unequal = comparable_epochs(
        [run.measures for run in sides.before], [run.measures for run in sides.after]
    )
    measured = effects(before, after, options.known_variation)
    primary = _primary(options.metrics, measured)
    changes = {name: change(name, one, before, after) for name, one in measured.items()}
    primary_change = changes.get(primary)
    listed = [name for name in changes if not options.metrics or name in options.metrics]
    speedup = changes[SPEEDUP].change if SPEEDUP in changes else None
    explained_before, explained_after = _explanations(sides.before), _explanations(sides.after)
    new = appeared(explained_before, explained_after)
    return CompareResult(
        schema=tag("compare"),
        before=[_compared_run(run, one) for run, one in zip(sides.before, before, strict=True)],
        after=[_compared_run(run, one) for run, one in zip(sides.after, after, strict=True)],
        confidence=CONFIDENCE,
        metric=primary,
        change=primary_change.change if primary_change else None,
        decision=primary_change.decision if primary_change else "not decidable",
        smallest=primary_change.smallest if primary_change else None,
        metrics=[changes[name] for name in sorted(listed, key=lambda name: name != primary)],
        gates=[judge(gate, changes.get(gate.metric)) for gate in options.gates],
        promised=follow_up(explained_before, explained_after, new, speedup, differing),
        appeared=new,
        differences=differing,
        notes=[
            *notes,
            *unequal,
            *caveats(
                Side(name="before", runs=sides.before, measures=before),
                Side(name="after", runs=sides.after, measures=after),
                measured,
                primary,
            ),
        ],
    )


def check_repeats(sides: Sides) -> None:
    """Check that each side has runs, and none of them twice.

    Raises:
        BadInput: a side is empty or lists a run twice.
    """
    for name, side in (("before", sides.before), ("after", sides.after)):
        ids = [run.record.id for run in side]
        if not ids:
            raise BadInput(f"no run {name} was given", hint="give runs, or folders of them, on both sides")
        repeated = next((id_ for id_ in ids if ids.count(id_) > 1), None)
        if repeated is not None:
            raise BadInput(f"{repeated} is given twice as a run {name}", hint="give every repeat its own run")


def _explanations(side: Sequence[MeasuredRun]) -> list[ExplainResult]:
    return [run.explained for run in side if run.explained is not None]


def comparable_epochs(
    before: Sequence[Measures], after: Sequence[Measures]
) -> tuple[list[Measures], list[Measures], list[str]]:
    """Both sides without times of epochs where an epoch is other work on one of them, and a note that says so."""
    sizes = [one.epoch_samples for one in (*before, *after) if one.epoch_samples]
    if not sizes or max(sizes) <= min(sizes) * (1 + RAGGED):
        return list(before), list(after), []
    note = (
        f"epochs have {min(sizes):,.0f} to {max(sizes):,.0f} samples: their times and those to a solution or an "
        "accuracy are not compared"
    )
    cut = [
        [replace(one, values={name: of for name, of in one.values.items() if name not in EPOCH_TIMES}) for one in side]
        for side in (before, after)
    ]
    return cut[0], cut[1], [note]


def effects(
    before: Sequence[Measures], after: Sequence[Measures], known_variation: KnownVariation | None
) -> dict[str, Effect]:
    """The effect on each metric that both sides have, in the order of ``METRICS`` and on the metric's scale."""
    by_metric = {}
    for name, metric in METRICS.items():
        old, new = values(name, before), values(name, after)
        if old and new:
            one = effect(old, new, known_variation.of(metric) if known_variation else None)
            # One seed gives the same accuracy every time: how another seed varies was not measured.
            one_seed = metric.by_seed and one.error == 0
            by_metric[name] = replace(one, error=None, freedom=None, basis="unknown") if one_seed else one
    return by_metric


def values(name: str, side: Sequence[Measures]) -> list[Measured]:
    """The values of metric ``name`` over the runs of a side that have it."""
    return [one.values[name] for one in side if name in one.values]


def decide(metric: Metric, effect: Effect) -> Decision:
    """The decision that the interval of ``effect`` allows; a point estimate alone decides nothing."""
    bounds = effect.bounds()
    if bounds is None:
        return "not decidable"
    if bounds[0] > ROUNDING:
        return metric.more_is
    return OPPOSITE[metric.more_is] if bounds[1] < -ROUNDING else "no difference shown"


def change(name: str, effect: Effect, before: Sequence[Measures], after: Sequence[Measures]) -> Change:
    """The effect on metric ``name`` as it is reported: as a ratio, or in the metric's unit."""
    metric = METRICS[name]
    ratio = metric.scale == "ratio"
    means = [statistics.fmean(one.value for one in values(metric.name, side)) for side in (before, after)]
    within = effect.within_bounds()
    return Change(
        metric=metric.name,
        unit=metric.unit,
        scale=metric.scale,
        before=math.exp(means[0]) if ratio else means[0],
        after=math.exp(means[1]) if ratio else means[1],
        change=_interval(effect.value, effect.bounds(), ratio=ratio),
        within_runs=None if within is None else _interval(effect.value, within, ratio=ratio),
        decision=decide(metric, effect),
        smallest=None if effect.smallest is None else math.expm1(effect.smallest) if ratio else effect.smallest,
        basis=effect.basis,
        freedom=None if effect.freedom is None or math.isinf(effect.freedom) else effect.freedom,
        between_runs=effect.spread,
    )


def _interval(value: float, bounds: tuple[float, float] | None, *, ratio: bool) -> Interval:
    low, high = bounds or (None, None)
    if not ratio:
        return Interval(value=value, low=low, high=high)
    return Interval(
        value=math.exp(value),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
    )


def _primary(requested: Sequence[str], measured: Mapping[str, Effect]) -> str:
    """The metric that the decision rests on.

    Raises:
        BadInput: a requested metric was not measured.
    """
    missing = [name for name in requested if name not in measured]
    if missing:
        raise BadInput(
            f"{', '.join(missing)}: not measured on both sides",
            hint=f"measured on both: {', '.join(measured) or 'nothing'}",
        )
    return next((name for name in (*requested, *DEFAULT_METRICS) if name in measured), DEFAULT_METRICS[0])


def _compared_run(run: MeasuredRun, measures: Measures) -> ComparedRun:
    record = run.record
    return ComparedRun(
        run=record.id,
        name=record.name,
        directory=run.directory,
        created_utc=record.created_utc,
        status=record.status,
        ranks=record.ranks,
        steps=measures.steps,
        throughput=measures.throughput,
    )
