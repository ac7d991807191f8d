"""How was each number obtained? Definitions, excluded steps with their reasons, and the cost of recording."""

from __future__ import annotations

from collections.abc import Sequence

from allpull.report.html.block import Block, Notice, Table, Terms
from allpull.report.printable import short
from allpull.report.sections.phases import ROUNDING
from allpull.report.sections.runs import MOST_GAPS
from allpull.report.wording import ABSENT, labels, listed_gaps, percent
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunMetrics
from allpull.units import counted

TITLE = "How each number was obtained"
REASONS = {
    "warmup": "first steps of the run",
    "first_batch": "first batch of an epoch",
    "evaluation": "contain an evaluation",
    "checkpoint": "contain a checkpoint",
    "resumed": "first after resuming",
    "not_on_all_ranks": "not recorded by every rank",
    "last_of_some_ranks": "the last of a rank that has fewer than others",
    "ragged": "short last batch of an epoch",
}
DEFINITIONS = {
    "Steady window": (
        "The steps that rates rest on. Steps that are slow for a known reason of their own are left out and counted "
        "above, each under its first reason, and so are steps that not every rank recorded; no step is left out for "
        "being slow."
    ),
    "Throughput": (
        "Samples of all ranks divided by wall time, both summed over the steady steps; the time of a step is the mean "
        "over ranks."
    ),
    "95 % interval": (
        "From the stationary block bootstrap over steps (Politis and Romano, 1994): blocks of neighbouring steps are "
        "drawn again, because a slow step is often followed by another; their mean length is chosen from the data "
        "(Politis and White, 2004; corrected 2009). It covers the variation within a run, not that between runs."
    ),
    "Speed-up and efficiency": (
        "Speed-up is throughput divided by that of the reference, the run with the fewest ranks. Efficiency is "
        "speed-up divided by the ratio of ranks: 100 % is perfect, and more is called superlinear."
    ),
    "Phases": (
        "Disjoint parts of a step in seconds, the mean over steady steps and ranks. Forward and backward hold compute "
        "only; time blocked in the exchange of gradients is split into wait and transfer. What no phase accounts for "
        "is other."
    ),
    "Wait and transfer": (
        "A rank arrives when its own gradients are ready, and is done when the reduced ones are back. Wait is the time "
        "from its arrival to the last arrival of all ranks, but not beyond done: "
        "clip(min(last arrival, done) − arrival, 0). Transfer is the time from then until done. Where an exchange "
        "began before the last arrival, this is an upper bound on waiting."
    ),
    "Closure error": (
        "The difference between the sum of the phases and the step time, over the step time; the largest of all "
        "ranks. It is above 0 where records overlap, so that time is counted twice."
    ),
    "Overhead": ("The share of the ranks' time spent on recording, timed by the ranks themselves."),
    "Not measured": (
        f"A number whose inputs are missing is shown as {ABSENT}, never as 0; what is missing is listed as a gap."
    ),
}


def block(report: ScalingReport) -> Block:
    """Definitions of all numbers, and the steps that each run's numbers are based on."""
    runs = report.show.runs
    used = sum(run.steady.used for run in runs)
    left_out = sum(sum(run.steady.left_out.values()) for run in runs)
    lead = f"Rates rest on {counted(used, 'steady step')}; {counted(left_out, 'step')} {_were(left_out)} left out."
    gaps = listed_gaps(report.show)
    missing = [Notice(title="What is missing", items=gaps)] if len(gaps) > MOST_GAPS else []
    return Block(title=TITLE, lead=lead, parts=[_table(runs), Terms(pairs=list(DEFINITIONS.items())), *missing])


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _table(runs: Sequence[RunMetrics]) -> Table:
    rows = [
        (
            label,
            _left_out(run),
            f"{run.steady.used:,}",
            percent(_closure(run.closure_error)),
            percent(run.overhead.share),
            f"{len(run.gaps):,}" if run.gaps else "none",
        )
        for label, run in zip(labels(runs), runs, strict=True)
    ]
    columns = ("Run", "Steps left out, and why", "Steady steps", "Closure error", "Overhead", "Gaps")
    return Table(caption="What the numbers of each run rest on", columns=columns, rows=rows, text_columns=2)


def _closure(error: float | None) -> float | None:
    """A closure error without rounding noise."""
    return 0.0 if error is not None and error < ROUNDING else error


def _left_out(run: RunMetrics) -> str:
    reasons = [
        f"{steps:,} ({REASONS.get(reason, short(reason, 60))})"
        for reason, steps in run.steady.left_out.items()
        if steps
    ]
    return ", ".join(reasons) or "none"
