"""A tuning on a terminal: its trials, the confirmed gain, and the best configuration to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable, short
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT, ranged, spread, times
from allpull.schema.results import Interval
from allpull.schema.studied import Parameters, Value
from allpull.schema.tuned import Objective, Proposer, Trial, TuneResult
from allpull.units import counted, show_count, show_time

TITLES: Mapping[Objective, str] = {
    "epoch_s": "epoch",
    "throughput": "samples/s",
    "time_to_accuracy_s": "time to accuracy",
}
PROPOSERS: Mapping[Proposer, str] = {"start": "start", "bottleneck": "neighbour of the best", "optuna": "Optuna"}
KINDS: Mapping[str, str] = {
    "input": "input-bound",
    "network": "network-bound",
    "launch": "launch-bound",
    "compute": "compute-bound",
    "cpu": "short of CPUs",
}
ENDS: Mapping[str, str] = {
    "time": "its time was spent",
    "trials": "the number of trials was reached",
    "rank-hours": "its rank-hours were spent",
    "space": "every configuration was measured",
    "start failed": "the first configuration failed",
}
MAX_REASON = 200  # characters


def tuned(result: TuneResult) -> RenderableType:
    """The trials in their order, the gain, the best configuration and the notes."""
    parts: list[RenderableType] = [_trials(result), Text(), bullets(list(sentences(result)))]
    if result.best_toml is not None:
        lines = [Text(f"    {printable(line)}") for line in result.best_toml.splitlines()]
        parts += [Text(), Text("The best configuration:"), *lines]
    if result.command is not None:
        parts += [Text(), Text(printable(shlex.join(result.command)))]
    return Group(*parts)


def value_text(objective: Objective, value: Interval | None) -> str:
    """The objective as its column has it.

    >>> value_text("throughput", Interval(value=980.4, low=968.0, high=992.0))
    '980 ± 12'
    >>> value_text("epoch_s", Interval(value=75.2, low=None, high=None))
    '75.2 s'
    """
    if value is None:
        return ABSENT
    return spread(value) if objective == "throughput" else show_time(value.value)


def trial_line(trial: Trial, best: Trial | None) -> str:
    """One trial that has just ended, on a line."""
    number = "" if trial.value is None else f" {show_count(trial.value.value)}"
    state = {"completed": f"{number}", "stopped": f" ended early at{number}"}.get(trial.state, f" {trial.state}")
    reason = f": {short(trial.reason, MAX_REASON)}" if trial.reason and trial.state in ("failed", "timeout") else ""
    is_best = " (best so far)" if best is not None and best.number == trial.number else ""
    return f"trial {trial.number}: {parameters_text(trial.parameters)} →{state}{reason}{is_best}"


def _trials(result: TuneResult) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("trial", justify="right")
    for one in result.space:
        table.add_column(short(one.name, 30), justify="right", overflow="fold")
    table.add_column(TITLES[result.objective], justify="right", overflow="fold")
    table.add_column("took", justify="right")
    table.add_column("why", overflow="fold")
    for trial in result.trials:
        is_best = trial.state == "completed" and trial.parameters == result.best
        table.add_row(
            Text(str(trial.number)),
            *(Text(short(shown_value(trial.parameters[one.name]), 40)) for one in result.space),
            Text(("at best " if trial.state == "stopped" else "") + value_text(result.objective, trial.value)),
            Text(show_time(trial.seconds)),
            Text(trial_reason(trial)),
            style="bold" if is_best else "",
        )
    return table


def trial_reason(trial: Trial) -> str:
    """Who proposed a trial, and how it ended where it did not complete."""
    proposed = PROPOSERS[trial.proposed_by]
    if trial.bottleneck is not None:
        proposed += f", {KINDS[trial.bottleneck]}"
    if trial.state == "completed":
        return proposed
    state = {"stopped": "ended early", "failed": "failed", "timeout": "timed out"}[trial.state]
    return f"{proposed}; {state}: {short(trial.reason or 'no reason known', MAX_REASON)}"


def sentences(result: TuneResult) -> Iterator[str]:
    """The confirmed gain, the bottleneck, what the search took, and the notes; at least one sentence."""
    confirmation, total = result.confirmation, show_time(result.seconds)
    if confirmation is not None and confirmation.gain is not None:
        runs = f"{len(confirmation.best_runs)} + {len(confirmation.start_runs)} fresh runs in alternation"
        yield f"The best is {ranged(confirmation.gain)} as good as the start, confirmed by {runs}."
        if result.gain_in_search is not None:
            yield f"The search measured {times(result.gain_in_search)}; the best of many is on average too good."
    if result.bottleneck is not None:
        yield f"The first configuration is {KINDS[result.bottleneck]}."
    runs = f"{counted(len(result.trials), 'trial')}{' and the confirmation' if confirmation is not None else ''}"
    yield f"{runs} took {total}; the search ended: {ENDS[result.ended]}."
    yield from (f"{note[0].upper()}{note[1:]}." for note in result.notes)


def shown_value(value: Value) -> str:
    """The value of a parameter as people read it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def parameters_text(parameters: Parameters) -> str:
    """Parameters on one line.

    >>> parameters_text({"workers": 4, "train.lr": 0.1})
    'workers = 4, train.lr = 0.1'
    """
    return ", ".join(f"{name} = {shown_value(value)}" for name, value in parameters.items())
