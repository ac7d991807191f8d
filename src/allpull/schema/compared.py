"""What `allpull compare` answers (DESIGN §5): is B different from A, by how much, and how sure that is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.results import Interval

Scale = Literal["ratio", "difference"]
Decision = Literal["faster", "slower", "better", "worse", "no difference shown", "not decidable"]
Basis = Literal["both sides", "one side", "stored", "unknown"]
Outcome = Literal["passed", "failed", "unknown"]
State = Literal["gone", "smaller", "still there", "not known"]
Kept = Literal["kept", "more", "less", "not decidable"]


class ComparedRun(Record):
    """One run of a comparison."""

    run: str
    name: str
    directory: str
    created_utc: str
    status: str
    ranks: int
    steps: int = Field(ge=0, description="steady ones, which rates rest on")
    throughput: Interval | None = Field(description="samples/s; 95 %, of what varies within the run alone")


class Spread(Record):
    """How much a metric varies from run to run of the same thing."""

    sd: float = Field(ge=0, description="standard deviation: of the logarithm of a ratio, else in the metric's unit")
    freedom: float | None = Field(gt=0, description="degrees of freedom it rests on; None: taken as known")


class Change(Record):
    """One metric of both sides. Intervals are of the level that the answer states as `confidence`."""

    metric: str
    unit: str
    scale: Scale = Field(description="ratio: after ÷ before; difference: after − before, in the unit")
    before: float | None = Field(description="mean over the runs; the geometric one for a ratio")
    after: float | None
    change: Interval | None = Field(description="no bounds where it is not known what varies from run to run")
    within_runs: Interval | None = Field(description="the same from what varies within runs alone: too narrow")
    decision: Decision
    smallest: float | None = Field(
        None, description="change that such data show four times in five; relative for a ratio, else in the unit"
    )
    basis: Basis = Field(description="from where it is known what varies from run to run")
    freedom: float | None = Field(None, description="degrees of freedom of the interval; None: as many as you like")
    between_runs: Spread | None = Field(None, description="as seen among these runs, within their sides")


class Difference(Record):
    """A fact in which the two sides differ."""

    fact: str
    before: str
    after: str
    key: bool = Field(description="it must agree for a fair comparison")


class GateResult(Record):
    """What became of one `--fail-if`."""

    gate: str = Field(description="as it was written")
    metric: str
    threshold: float = Field(description="a ratio such as 0.97, or a difference in the metric's unit")
    outcome: Outcome = Field(description="failed: the whole interval lies beyond the threshold; passed: none of it")
    words: str


class Promise(Record):
    """What `explain` said that a remedy would bring, and what came."""

    rule: str
    title: str
    ranks: list[int]
    remedy: str
    promised: Interval = Field(description="speed-up ratio; 95 %")
    came: Interval | None = Field(description="throughput with pauses, after ÷ before: of all that changed")
    loss_s_before: float | None = Field(description="seconds per step that it cost")
    loss_s_after: float | None = Field(description="0: it is gone; None: the runs after were not explained")
    state: State
    changed: list[str] = Field(
        description="differences in the options that the remedy names; empty where a stored finding has no options"
    )
    kept: Kept = Field(description="whether what came is what was promised; decided where one remedy was taken")


class CompareResult(Record):
    """Two sides compared; A is before, B is after."""

    schema_: str = Field(alias="schema")
    before: list[ComparedRun]
    after: list[ComparedRun]
    confidence: float = Field(description="level of all intervals here that do not state another")
    metric: str = Field(description="what the decision is about")
    change: Interval | None = Field(description="of that metric: after ÷ before for a rate or a time")
    decision: Decision
    smallest: float | None = Field(description="change of that metric that these data show four times in five")
    metrics: list[Change] = Field(description="the one that was decided on first")
    gates: list[GateResult]
    promised: list[Promise]
    differences: list[Difference] = Field(description="those that must agree first")
    notes: list[str]
