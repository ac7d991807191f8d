"""Result of `allpull compare` (DESIGN §5): whether B differs from A, by how much, and how certain that is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.explained import RemedyLine
from allpull.schema.results import Interval

Scale = Literal["ratio", "difference"]
Decision = Literal["faster", "slower", "better", "worse", "no difference shown", "not decidable"]
Basis = Literal["both sides", "one side", "stored", "unknown"]
Outcome = Literal["passed", "failed", "unknown"]
State = Literal["gone", "not found", "smaller", "still there", "not known"]
Kept = Literal["kept", "more", "less", "not decidable"]


class ComparedRun(Record):
    """One run of a comparison."""

    run: str
    name: str
    directory: str
    created_utc: str
    status: str
    ranks: int
    steps: int = Field(ge=0, description="steady steps, on which the rates rest")
    throughput: Interval | None = Field(description="samples/s; 95 %, from the variation within the run alone")


class Spread(Record):
    """How much a metric varies between repeats of one run."""

    sd: float = Field(ge=0, description="standard deviation: of the logarithm for a ratio, else in the metric's unit")
    freedom: float | None = Field(gt=0, description="degrees of freedom of `sd`; None: assumed exact")


class Change(Record):
    """One metric of both sides. The level of its intervals is `confidence` of the result."""

    metric: str
    unit: str
    scale: Scale = Field(description="ratio: after ÷ before; difference: after − before, in the unit")
    before: float | None = Field(description="mean over the runs; the geometric mean for a ratio")
    after: float | None
    change: Interval | None = Field(description="no bounds where the run-to-run variation is not known")
    within_runs: Interval | None = Field(description="the same from the variation within runs alone: too narrow")
    decision: Decision
    smallest: float | None = Field(
        None,
        description="smallest change shown four times in five; relative for a ratio, else in the unit",
    )
    basis: Basis = Field(description="source of the run-to-run variation")
    freedom: float | None = Field(None, description="degrees of freedom of the interval; None: infinite or not known")
    between_runs: Spread | None = Field(None, description="as measured among these runs, within their sides")


class Difference(Record):
    """A fact in which both sides differ."""

    fact: str
    before: str
    after: str
    key: bool = Field(description="it must agree for a fair comparison")


class GateResult(Record):
    """The outcome of one `--fail-if`."""

    gate: str = Field(description="as given on the command line")
    metric: str
    threshold: float = Field(description="a ratio such as 0.97, or a difference in the metric's unit")
    outcome: Outcome = Field(description="failed: the whole interval lies beyond the threshold; passed: none of it")
    words: str


class RemedyFollowUp(Record):
    """The speed-up that `explain` predicted for a remedy, and the measured one."""

    rule: str
    title: str
    ranks: list[int]
    remedy: str
    lines: list[RemedyLine] | None = Field(default=None, description="commands and edits in the remedy")
    promised: Interval = Field(description="speed-up ratio; 95 %")
    is_hidden: bool = Field(False, description="whether other findings hide a part of it, and have to be mended first")
    came: Interval | None = Field(description="throughput with pauses, after ÷ before: of all changes together")
    loss_s_before: float | None = Field(description="seconds per step lost before")
    loss_s_after: float | None = Field(
        description="the same after; 0: the finding is gone; None: the runs after were not explained"
    )
    state: State = Field(description="not found: of a slower training, which a larger finding that is new may hide")
    changed: list[str] = Field(
        description="differences in the options that the remedy names; empty where a stored finding has no options"
    )
    kept: Kept = Field(
        description="whether `came` agrees with `promised`; decided if one finding was addressed, not hidden"
    )


class NewFinding(Record):
    """A finding of `explain` that the runs after have, and those before have not."""

    rule: str
    title: str
    ranks: list[int]
    gain: Interval = Field(description="speed-up ratio without it; 95 %")
    loss_s: float = Field(description="seconds per step lost")
    remedy: str


class CompareResult(Record):
    """Two sides compared; A is before, B is after."""

    schema_: str = Field(alias="schema")
    before: list[ComparedRun]
    after: list[ComparedRun]
    confidence: float = Field(description="level of all intervals that state no other")
    metric: str = Field(description="the metric that the decision rests on")
    change: Interval | None = Field(description="of `metric`: after ÷ before for a rate or a time")
    decision: Decision
    smallest: float | None = Field(description="smallest change of `metric` that these data show four times in five")
    metrics: list[Change] = Field(description="`metric` first")
    gates: list[GateResult]
    promised: list[RemedyFollowUp]
    appeared: list[NewFinding] = Field(default_factory=list, description="largest gain first")
    differences: list[Difference] = Field(description="facts that must agree first")
    notes: list[str]

    @property
    def is_worse(self) -> bool:
        """Whether the runs after are, so that what is new in them matters most."""
        return self.decision in {"slower", "worse"}


class PlacedProbe(Record):
    """One all-reduce probe: where its ranks were."""

    run: str
    ranks: int
    hosts: list[str]
    switches: list[str] | None = Field(
        description="leaf switch of each host, in order, by Slurm's topology; None: it names none for some host"
    )


class PlacementSize(Record):
    """One size of the all-reduce on both placements: medians of repetitions, geometric mean over probes."""

    size_bytes: int
    before_s: float
    after_s: float
    ratio: Interval = Field(description="time after ÷ before")
    basis: Basis = Field(description="unknown: what varies from probe to probe is not in the interval")
    decision: Decision


class PlacementResult(Record):
    """All-reduce probes on two placements of as many ranks: `allpull compare PROBE… --with PROBE…`."""

    schema_: str = Field(alias="schema")
    before: list[PlacedProbe]
    after: list[PlacedProbe]
    confidence: float
    sizes: list[PlacementSize] = Field(description="those that all probes measured, ascending")
    decision: Decision = Field(description="that of the largest size")
    notes: list[str]
