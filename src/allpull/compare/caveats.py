"""What has to be said beside a comparison: what was not seen, and what may have changed that nobody meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allpull.analyse.effect import CONTRADICTED, MIN_RUNS, Effect
from allpull.compare.metrics import METRICS, Measures
from allpull.rundir.read.run import RunData
from allpull.schema.compared import Spread
from allpull.units import percent, show_time

MAX_GAPS = 6  # of all runs; `allpull show` has the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The runs of one side, and what was measured of each; ``name`` is "before" or "after"."""

    name: str
    runs: Sequence[RunData]
    found: Sequence[Measures]


def remarks(before: Side, after: Side, effects: Mapping[str, Effect], lead: str) -> list[str]:
    """One sentence each, the most important first; ``lead`` is the metric that was decided on."""
    return [
        *_on_basis(before, after, effects.get(lead), lead),
        *_on_seeds(effects),
        *_on_order(before, after),
        *_on_runs(before, after, lead),
        *_on_gaps(before, after),
    ]


def _on_basis(before: Side, after: Side, found: Effect | None, lead: str) -> Iterator[str]:
    """From where it is known what varies from run to run, unless both sides tell it."""
    if found is None:
        yield f"{lead} was not measured on both sides: there is nothing to decide on"
        return
    if found.contradicted and found.spread is not None:
        yield (
            f"--between-run was not used: runs of one side vary by {_spread(found.spread, lead)}, more than "
            f"{CONTRADICTED:g} times that"
        )
    if found.basis == "one side":
        told = max((before, after), key=lambda side: len(side.runs))
        yield (
            f"only the runs {told.name} are enough to tell what varies from run to run; the others are taken to vary "
            "as much"
        )
    one_seed = METRICS[lead].by_seed and found.spread is not None
    if found.basis == "unknown" and not one_seed:
        yield (
            "what varies from run to run is not known, so nothing is decided: give "
            f"{MIN_RUNS} or more runs a side, or a stored figure with --between-run"
        )


def _spread(spread: Spread, metric: str) -> str:
    return percent(spread.sd, 2) if METRICS[metric].scale == "ratio" else show_time(spread.sd)


def _on_seeds(effects: Mapping[str, Effect]) -> Iterator[str]:
    for name, found in effects.items():
        if METRICS[name].by_seed and found.spread is not None and found.spread.sd == 0:
            yield f"{name} is the same in all runs of a side: another seed gives another value, and none was seen"


def _on_order(before: Side, after: Side) -> Iterator[str]:
    """Runs in two blocks, one after the other, let everything that changed meanwhile look like the change."""
    if min(len(before.runs), len(after.runs)) < MIN_RUNS:
        return
    first, last = ([run.record.created_utc for run in side.runs] for side in (before, after))
    if max(first) < min(last) or max(last) < min(first):
        yield (
            "all runs of one side were made before all of the other: whatever else changed meanwhile is in the "
            "difference; take turns (A B A B …)"
        )


def _on_runs(before: Side, after: Side, lead: str) -> Iterator[str]:
    twice = {run.record.id for run in before.runs} & {run.record.id for run in after.runs}
    if twice:
        yield f"{', '.join(sorted(twice))} stands on both sides"
    for side in (before, after):
        for run, found in zip(side.runs, side.found, strict=True):
            if run.record.status != "completed":
                yield f"{run.record.id} ({side.name}) is {run.record.status}"
            if lead not in found.values:
                yield f"{run.record.id} ({side.name}) has no {lead}: it is left out of it"
            elif found.values[lead].error is None and METRICS[lead].scale == "ratio":
                steps = f"{found.steps:,} steady step{'' if found.steps == 1 else 's'}"
                yield f"{run.record.id} ({side.name}) has {steps}: too few to tell how it varies within"


def _on_gaps(before: Side, after: Side) -> Iterator[str]:
    gaps = [f"{run.record.id}: {gap.text}" for side in (before, after) for run in side.runs for gap in run.gaps]
    yield from gaps[:MAX_GAPS]
    if len(gaps) > MAX_GAPS:
        yield f"and {len(gaps) - MAX_GAPS:,} more gaps, which allpull show names"
