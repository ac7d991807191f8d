"""Caveats of a comparison: what was not measured, and what else may have changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allpull.analyse.effect import CONTRADICTED, MIN_RUNS, Effect
from allpull.compare.measured_run import MeasuredRun
from allpull.compare.metrics import METRICS, Measures
from allpull.schema.compared import Spread
from allpull.units import counted, percent, show_time

APART = 0.03  # between the logarithms of two ratios: less may be noise
MAX_GAPS = 6  # over all runs; `allpull show` lists the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The runs of one side and their measured metrics; ``name`` is "before" or "after"."""

    name: str
    runs: Sequence[MeasuredRun]
    measures: Sequence[Measures]


def caveats(before: Side, after: Side, effects: Mapping[str, Effect], primary: str) -> list[str]:
    """One sentence per caveat, the most important first; ``primary`` is the metric that the decision rests on."""
    return [
        *_pause_caveats(effects, primary),
        *_variation_caveats(before, after, effects.get(primary), primary),
        *_seed_caveats(effects),
        *_order_caveats(before, after),
        *_run_caveats(before, after, primary),
        *_gap_caveats(before, after),
    ]


def _pause_caveats(effects: Mapping[str, Effect], primary: str) -> Iterator[str]:
    """Where the steps that the rate of steady steps leaves out changed otherwise than it."""
    steady, whole = effects.get("throughput"), effects.get("throughput_with_pauses")
    if primary != "throughput" or steady is None or whole is None or abs(whole.value - steady.value) < APART:
        return
    longer = math.expm1(whole.value)
    yield (
        "throughput leaves out the first step of an epoch and those with an evaluation or a checkpoint, with all that "
        f"they take: throughput_with_pauses is {percent(abs(longer), 1)} {'higher' if longer > 0 else 'lower'}; judge "
        "that one by --metric throughput_with_pauses"
    )


def _variation_caveats(before: Side, after: Side, effect: Effect | None, primary: str) -> Iterator[str]:
    """Where the run-to-run variation comes from, unless both sides show it."""
    if effect is None:
        yield f"{primary} was not measured on both sides, so nothing is decided"
        return
    if effect.contradicted and effect.spread is not None:
        yield (
            f"--between-run was not used: runs of one side vary by {_spread(effect.spread, primary)}, more than "
            f"{CONTRADICTED:g} times that value"
        )
    if effect.basis == "one side":
        larger = max((before, after), key=lambda side: len(side.runs))
        yield (
            f"only the runs {larger.name} are enough to show the run-to-run variation; the other side is assumed to "
            "vary as much"
        )
    one_seed = METRICS[primary].by_seed and effect.spread is not None
    if effect.basis == "unknown" and not one_seed:
        yield (
            "the run-to-run variation is not known, so nothing is decided: give "
            f"{MIN_RUNS} or more runs per side, or a known variation with --between-run"
        )


def _spread(spread: Spread, metric: str) -> str:
    return percent(spread.sd, 2) if METRICS[metric].scale == "ratio" else show_time(spread.sd)


def _seed_caveats(effects: Mapping[str, Effect]) -> Iterator[str]:
    for name, effect in effects.items():
        if METRICS[name].by_seed and effect.spread is not None and effect.spread.sd == 0:
            yield f"{name} is the same in all runs of a side: another seed would give another value, but none was run"


def _order_caveats(before: Side, after: Side) -> Iterator[str]:
    """Where one side ran entirely before the other, anything else that changed meanwhile is part of the difference."""
    if min(len(before.runs), len(after.runs)) < MIN_RUNS:
        return
    first, last = ([run.record.created_utc for run in side.runs] for side in (before, after))
    if max(first) < min(last) or max(last) < min(first):
        yield (
            "all runs of one side were made before all runs of the other, so the difference includes anything else "
            "that changed meanwhile; alternate the sides (A B A B …)"
        )


def _run_caveats(before: Side, after: Side, primary: str) -> Iterator[str]:
    shared = {run.record.id for run in before.runs} & {run.record.id for run in after.runs}
    if shared:
        yield f"on both sides: {', '.join(sorted(shared))}"
    for side in (before, after):
        for run, measures in zip(side.runs, side.measures, strict=True):
            if run.record.status != "completed":
                yield f"{run.record.id} ({side.name}) is {run.record.status}"
            if primary not in measures.values:
                yield f"{run.record.id} ({side.name}) has no {primary} and is left out of that metric"
            elif measures.values[primary].error is None and METRICS[primary].scale == "ratio":
                steps = counted(measures.steps, "steady step")
                yield f"{run.record.id} ({side.name}) has {steps}: too few to show the variation within the run"


def _gap_caveats(before: Side, after: Side) -> Iterator[str]:
    gaps = [f"{run.record.id}: {gap.text}" for side in (before, after) for run in side.runs for gap in run.gaps]
    yield from gaps[:MAX_GAPS]
    if len(gaps) > MAX_GAPS:
        yield f"and {len(gaps) - MAX_GAPS:,} more gaps, listed by allpull show"
