"""What did the tuning find? Every trial, the best so far, and the gain of fresh runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Block, Chart, Command, Commands, Part, Points, Table
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.study.content import StudyReport
from allpull.report.terminal.tune import TITLES, sentences, shown_value, trial_reason, value_text
from allpull.report.wording import ABSENT
from allpull.schema.tuned import Trial, TuneResult
from allpull.units import show_time

TITLE = "What tuning found"
MOST_ROWS = 200  # of trials in the table
ENDED_EARLY, COMPLETED, BEST = "ended early", "completed", "best so far"


def block(report: StudyReport) -> Block | None:
    """The tuning in the study's directory; None where there is none."""
    return None if report.tuning is None else tuning_block(report.tuning)


def tuning_block(result: TuneResult) -> Block:
    """The confirmed gain, each trial against the best so far, and the command of the best configuration."""
    lines = list(sentences(result))
    parts: list[Part] = [Points(items=lines[1:])] if lines[1:] else []
    drawn = _chart(result)
    parts += [drawn] if drawn is not None else []
    parts.append(_trials(result))
    if result.confirmation is not None:
        parts.append(_confirmation(result))
    if result.command is not None:
        parts.append(Commands(commands=[Command(label="The best configuration", line=shlex.join(result.command))]))
    return Block(title=TITLE, lead=lines[0], parts=parts)


def _chart(result: TuneResult) -> Chart | None:
    """The objective of each trial and the best so far; None where fewer than two trials have a value."""
    measured = [trial for trial in result.trials if trial.value is not None]
    if len(measured) < 2:
        return None
    trials: list[dict[str, Any]] = [
        {
            "trial": trial.number,
            "value": trial.value.value,
            "low": trial.value.low,
            "high": trial.value.high,
            "kind": COMPLETED if trial.state == "completed" else ENDED_EARLY,
            "shown": value_text(result.objective, trial.value),
            "why": trial_reason(trial),
        }
        for trial in measured
        if trial.value is not None
    ]
    best = [{**row, "kind": BEST} for row in _best_so_far(result)]
    kinds = [kind for kind in (COMPLETED, ENDED_EARLY, BEST) if any(row["kind"] == kind for row in [*trials, *best])]
    colours = {COMPLETED: RUNS[0], ENDED_EARLY: QUIET, BEST: RUNS[1]}
    scale = alt.Scale(domain=kinds, range=[colours[kind] for kind in kinds])
    colour = alt.Color("kind:N", scale=scale, legend=LINE_KEY, title=None)
    x = alt.X("trial:Q", title="Trial", axis=alt.Axis(format=",d", tickMinStep=1, grid=False))
    title = TITLES[result.objective]
    y = alt.Y("value:Q", title=f"{title[0].upper()}{title[1:]}{' (s)' if result.unit == 's' else ''}")
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("trial", "shown", "why")]
    bars = [row for row in trials if row["low"] is not None and row["high"] is not None]
    layers = [alt.Chart(data(best)).mark_line(interpolate="step-after", strokeWidth=2).encode(x=x, y=y, color=colour)]
    layers += [alt.Chart(data(bars)).mark_rule().encode(x=x, y="low:Q", y2="high:Q", color=colour)] if bars else []
    points = alt.Chart(data(trials)).mark_point(filled=True, size=70, opacity=1)
    layers.append(points.encode(x=x, y=y, color=colour, tooltip=tooltip))
    better = "lower" if result.better == "lower" else "higher"
    return Chart(
        slug="tuning",
        title="Trials and the best so far",
        caption=f"A point is a trial, its bar the 95 % interval within that run; {better} is better.",
        height_px=300,
        key_characters=max(map(len, kinds)),
        spec=spec(alt.layer(*layers)),
    )


def _best_so_far(result: TuneResult) -> Iterator[dict[str, Any]]:
    """The best completed value up to each trial, from the first that completed on."""
    better = min if result.better == "lower" else max
    best: float | None = None
    for trial in result.trials:
        if trial.state == "completed" and trial.value is not None:
            best = trial.value.value if best is None else better(best, trial.value.value)
        if best is not None:
            yield {"trial": trial.number, "value": best}


def _trials(result: TuneResult) -> Table:
    shown = result.trials[:MOST_ROWS]
    rows = [
        (
            str(trial.number),
            trial_reason(trial),
            *(shown_value(trial.parameters[one.name]) for one in result.space),
            value_text(result.objective, trial.value),
            show_time(trial.seconds),
        )
        for trial in shown
    ]
    columns = ("Trial", "Why", *(one.name for one in result.space), TITLES[result.objective].capitalize(), "Took")
    return Table(
        caption="Every trial in its order; those with the best configuration are marked",
        columns=columns,
        rows=rows,
        text_columns=2,
        marked=frozenset(place for place, trial in enumerate(shown) if _is_best(trial, result)),
    )


def _is_best(trial: Trial, result: TuneResult) -> bool:
    return trial.state == "completed" and trial.parameters == result.best


def _confirmation(result: TuneResult) -> Table:
    confirmation = result.confirmation
    assert confirmation is not None

    def values(numbers: Sequence[float | None]) -> list[str]:
        return [ABSENT if one is None else f"{one:,.4g}" for one in numbers]

    runs = max(len(confirmation.start), len(confirmation.best))
    rows = [
        (name, *values(numbers), *([ABSENT] * (runs - len(numbers))))
        for name, numbers in (("start", confirmation.start), ("best", confirmation.best))
    ]
    columns = ("Configuration", *(f"Run {number}" for number in range(1, runs + 1)))
    unit = " (s)" if result.unit == "s" else ""
    return Table(caption=f"Fresh runs in alternation, {TITLES[result.objective]}{unit}", columns=columns, rows=rows)
