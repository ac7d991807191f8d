"""Result of `allpull tune`: every configuration that was measured, and the best of them, confirmed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.results import Interval
from allpull.schema.studied import Parameters, Value

Objective = Literal["epoch_s", "throughput", "time_to_accuracy_s"]
TrialState = Literal["completed", "stopped", "failed", "timeout"]
Proposer = Literal["start", "bottleneck", "optuna"]
BottleneckKind = Literal["input", "network", "launch", "compute", "cpu"]
Ended = Literal["time", "trials", "rank-hours", "space", "start failed"]


class TunedParameter(Record):
    """One parameter of the search space: either its values, or the bounds of a range."""

    name: str
    values: list[Value] | None
    low: float | None = None
    high: float | None = None
    log: bool = False
    affects: list[BottleneckKind] = Field(description="the bottlenecks that it may relieve; empty: not known")


class Trial(Record):
    """One configuration that was run once during the search."""

    number: int = Field(ge=0)
    parameters: Parameters
    state: TrialState = Field(description="stopped: ended early, clearly worse than the best so far")
    value: Interval | None = Field(description="the objective; of a stopped trial, what its live records showed")
    proposed_by: Proposer
    bottleneck: BottleneckKind | None = Field(None, description="of the best configuration when this was proposed")
    seconds: float = Field(description="wall time, start and end of the job included")
    rank_s: float = Field(description="the same, times its ranks")
    run: str | None = Field(description="run directory, relative to that of the study")
    reason: str | None = Field(None, description="why it failed or was stopped")


class Confirmation(Record):
    """Start and best, run again in alternation, none of which the search used. None: that run failed."""

    start: list[float | None]
    best: list[float | None]
    start_runs: list[str]
    best_runs: list[str]
    gain: Interval | None = Field(
        description="how many times better best is than start, geometric mean of its runs; None: a side has no run"
    )
    seconds: float
    rank_s: float


class TuneResult(Record):
    """Result of `allpull tune`."""

    schema_: str = Field(alias="schema")
    name: str
    title: str
    directory: str
    objective: Objective
    unit: str
    better: Literal["lower", "higher"]
    space: list[TunedParameter]
    configurations: int | None = Field(description="that the space holds; None: a parameter is a range")
    trials: list[Trial]
    start: Parameters = Field(description="the first configuration")
    bottleneck: BottleneckKind | None = Field(description="of the first configuration, by `explain`")
    best: Parameters | None = Field(description="None: no trial completed")
    gain_in_search: float | None = Field(
        description="best over start by the search's own runs: the best of many, so on average too large"
    )
    confirmation: Confirmation | None
    seconds: float = Field(description="of all runs, confirmation included")
    rank_s: float
    ended: Ended = Field(description="what ended the search; space: every configuration was measured")
    best_toml: str | None = Field(description="the best configuration as TOML")
    command: list[str] | None = Field(description="what runs the best configuration")
    notes: list[str]
