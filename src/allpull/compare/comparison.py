"""Compare two sides of runs: what changed, by how much, how sure that is, and what a gate makes of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.effect import CONFIDENCE, Effect, Measured, effect
from allpull.compare.caveats import Side, remarks
from allpull.compare.comparability import check, differences, facts
from allpull.compare.gate import Gate, judge
from allpull.compare.known_variation import Figure
from allpull.compare.metrics import METRICS, Measures, Metric, measures
from allpull.compare.remedy_follow_up import promises
from allpull.errors import BadInput
from allpull.rundir.read.run import RunData
from allpull.rundir.safe_open import shown_path
from allpull.schema.base import tag
from allpull.schema.compared import Change, ComparedRun, CompareResult, Decision
from allpull.schema.explained import ExplainResult
from allpull.schema.results import Interval

HEADLINE = ("throughput", "step_s")
"""What is decided on where nobody asks for another: the first of these that all runs have."""

SPEEDUP = "throughput_with_pauses"
"""What `explain` promises is a speed-up of the whole training."""

ROUNDING = 1e-12  # of a ratio, or seconds: a smaller difference is none, and no clock could tell

OPPOSITE: Mapping[str, Decision] = {"faster": "slower", "slower": "faster", "better": "worse", "worse": "better"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How to compare. ``metrics``: only these, the first of them decides; empty: all. ``anyway``: unlike runs too."""

    metrics: Sequence[str] = ()
    gates: Sequence[Gate] = ()
    figure: Figure | None = None
    anyway: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The runs of both sides, and what `explain` kept of them, by run id."""

    before: Sequence[AlignedRun]
    after: Sequence[AlignedRun]
    explained: Mapping[str, ExplainResult] = field(default_factory=dict)

    def explanations(self, side: Sequence[AlignedRun]) -> list[ExplainResult]:
        """What `explain` kept of the runs of ``side``."""
        return [self.explained[id_] for run in side if (id_ := run.data.record.id) in self.explained]


def compare(sides: Sides, asked: Asked) -> CompareResult:
    """Both sides compared.

    Raises:
        BadInput: a side is empty, a run stands on it twice, key facts do not agree, or a metric was not measured.
    """
    check_repeats(sides)
    facts_before, facts_after = ([facts(run.data) for run in side] for side in (sides.before, sides.after))
    differing = differences(facts_before, facts_after)
    notes = check(facts_before, facts_after, differing, anyway=asked.anyway)
    before = [measures(run, sides.explained.get(run.data.record.id)) for run in sides.before]
    after = [measures(run, sides.explained.get(run.data.record.id)) for run in sides.after]
    found = effects(before, after, asked.figure)
    lead = _lead(asked.metrics, found)
    changes = {name: change(name, one, before, after) for name, one in found.items()}
    headline = changes.get(lead)
    listed = [name for name in changes if not asked.metrics or name in asked.metrics]
    speedup = changes[SPEEDUP].change if SPEEDUP in changes else None
    return CompareResult(
        schema=tag("compare"),
        before=[_seen(run.data, one) for run, one in zip(sides.before, before, strict=True)],
        after=[_seen(run.data, one) for run, one in zip(sides.after, after, strict=True)],
        confidence=CONFIDENCE,
        metric=lead,
        change=headline.change if headline else None,
        decision=headline.decision if headline else "not decidable",
        smallest=headline.smallest if headline else None,
        metrics=[changes[name] for name in sorted(listed, key=lambda name: name != lead)],
        gates=[judge(gate, changes.get(gate.metric)) for gate in asked.gates],
        promised=promises(sides.explanations(sides.before), sides.explanations(sides.after), speedup, differing),
        differences=differing,
        notes=[
            *notes,
            *remarks(
                Side(name="before", runs=[run.data for run in sides.before], found=before),
                Side(name="after", runs=[run.data for run in sides.after], found=after),
                found,
                lead,
            ),
        ],
    )


def check_repeats(sides: Sides) -> None:
    """Each side has runs, and none of them twice.

    Raises:
        BadInput: it is not so.
    """
    for name, side in (("before", sides.before), ("after", sides.after)):
        ids = [run.data.record.id for run in side]
        if not ids:
            raise BadInput(f"no run {name} was given", hint="allpull compare BEFORE… --with AFTER…")
        twice = next((one for one in ids if ids.count(one) > 1), None)
        if twice is not None:
            raise BadInput(f"{twice} is given twice as a run {name}", hint="repeats have to be runs of their own")


def effects(before: Sequence[Measures], after: Sequence[Measures], figure: Figure | None) -> dict[str, Effect]:
    """The effect on each metric that both sides have, in the order of ``METRICS``, on the scale it is compared on."""
    found = {}
    for name, metric in METRICS.items():
        ours, theirs = values(name, before), values(name, after)
        if ours and theirs:
            one = effect(ours, theirs, figure.of(metric) if figure else None)
            # One seed gives the same accuracy again and again: what another would give has not been seen.
            unseen = metric.by_seed and one.error == 0
            found[name] = replace(one, error=None, freedom=None, basis="unknown") if unseen else one
    return found


def values(name: str, side: Sequence[Measures]) -> list[Measured]:
    """The metric called ``name`` of the runs of a side that have it."""
    return [one.values[name] for one in side if name in one.values]


def decide(metric: Metric, found: Effect) -> Decision:
    """What ``found`` shows: nothing is decided from a point estimate."""
    bounds = found.bounds()
    if bounds is None:
        return "not decidable"
    if bounds[0] > ROUNDING:
        return metric.more_is
    return OPPOSITE[metric.more_is] if bounds[1] < -ROUNDING else "no difference shown"


def change(name: str, found: Effect, before: Sequence[Measures], after: Sequence[Measures]) -> Change:
    """``found`` of the metric called ``name`` as it is told: as a ratio, or in the metric's unit."""
    metric = METRICS[name]
    ratio = metric.scale == "ratio"
    means = [statistics.fmean(one.value for one in values(metric.name, side)) for side in (before, after)]
    within = found.within_bounds()
    return Change(
        metric=metric.name,
        unit=metric.unit,
        scale=metric.scale,
        before=math.exp(means[0]) if ratio else means[0],
        after=math.exp(means[1]) if ratio else means[1],
        change=_interval(found.value, found.bounds(), ratio=ratio),
        within_runs=None if within is None else _interval(found.value, within, ratio=ratio),
        decision=decide(metric, found),
        smallest=None if found.smallest is None else math.expm1(found.smallest) if ratio else found.smallest,
        basis=found.basis,
        freedom=None if found.freedom is None or math.isinf(found.freedom) else found.freedom,
        between_runs=found.spread,
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


def _lead(asked: Sequence[str], found: Mapping[str, Effect]) -> str:
    """The metric to decide on.

    Raises:
        BadInput: one that was asked for was not measured.
    """
    missing = [name for name in asked if name not in found]
    if missing:
        raise BadInput(
            f"{', '.join(missing)}: not measured on both sides",
            hint=f"measured on both: {', '.join(found) or 'nothing'}",
        )
    return next((name for name in (*asked, *HEADLINE) if name in found), HEADLINE[0])


def _seen(run: RunData, found: Measures) -> ComparedRun:
    record = run.record
    return ComparedRun(
        run=record.id,
        name=record.name,
        directory=shown_path(run.directory),
        created_utc=record.created_utc,
        status=record.status,
        ranks=record.ranks,
        steps=found.steps,
        throughput=found.throughput,
    )
