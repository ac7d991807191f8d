"""Result of `allpull explain` (DESIGN §5). Names carry SI units; intervals are 95 %."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.results import Interval


class ExplainedWindow(Record):
    """The consecutive steps that the explanation rests on."""

    steps: int = Field(ge=0)
    seconds: float = Field(ge=0)
    first_step: int | None
    last_step: int | None
    level: Literal["step", "bucket"] = Field(
        description="bucket: times at which buckets were ready are known; "
        "step: waiting is an upper bound while the network is busy"
    )


class Efficiency(Record):
    """The efficiency tree: parallel is the product of the factors from transfer to load balance, or of those known."""

    parallel: Interval
    transfer: Interval | None = Field(description="None where not all ranks of the job were recorded")
    input: Interval
    sequential: Interval
    orchestration: Interval
    serialisation: Interval | None = Field(description="None where not all ranks of the job were recorded")
    load_balance: Interval | None = Field(description="None where not all ranks of the job were recorded")
    collectives: Interval | None = Field(
        default=None,
        description="all blocked time of the recorded ranks, where transfer, serialisation and load_balance are None",
    )
    computational: Interval | None = Field(description="None without a reference run")
    global_: Interval | None = Field(alias="global", description="None without a reference run")


class PhaseTimes(Record):
    """Seconds per step of each phase over the window: mean over ranks, and per rank. None: not measured."""

    mean: dict[str, float | None]
    per_rank: dict[str, list[float] | None]


class Evidence(Record):
    """One number that a finding rests on."""

    what: str = Field(description="label, such as 'caused waiting of rank 3'")
    value: float
    unit: str = Field(description="s, share, bytes/s, count and so on")
    low: float | None = None
    high: float | None = None
    source: str = Field(description="the data it comes from, such as 'steps 5 to 60 of all ranks'")


class Finding(Record):
    """One problem, its cost and its remedy. Advice is a finding that no measurement of this run can price."""

    rule: str
    title: str
    ranks: list[int] = Field(description="ranks that cause it; empty: all")
    hosts: list[str] = Field(description="hosts of these ranks; empty: all")
    loss_s_per_step: float | None = Field(
        description="of the job's step, from the replay without the problem; None: advice"
    )
    loss_share: float | None
    gain: Interval | None = Field(description="speed-up ratio without the problem")
    remedy: str = Field(description="one concrete action: a flag, a line of code, an option")
    options: list[str] | None = Field(
        default=None,
        description="keys of `--set` and environment variables that the remedy names; None: stored before this field",
    )
    evidence: list[Evidence]
    wrong_when: str
    advice: bool = False


class CausedWaiting(Record):
    """How long one rank waited for another, in seconds per step."""

    culprit: int
    victim: int
    seconds: float


class Waiting(Record):
    """Which rank made which wait, and by which phase, in s per step; phases and unattributed sum to the rows."""

    caused_s_per_step: list[list[float]] | None = Field(
        description="row: late rank, column: waiting rank; None: more ranks than a page shows, see pairs"
    )
    pairs: list[CausedWaiting] = Field(description="longest waiting first; only the significant ones")
    phases: dict[str, list[float]] = Field(
        description="phase, or transfer → per rank, the waiting of other ranks that this phase of the rank caused"
    )
    unattributed: list[float] = Field(description="per rank, the waiting of other ranks that no phase explains")


class ExplainResult(Record):
    """One run explained."""

    schema_: str = Field(alias="schema")
    run: str
    reference: str | None
    ranks: int
    hosts: int
    window: ExplainedWindow
    efficiency: Efficiency | None = Field(description="None: too few steps, or the clocks of ranks cannot be aligned")
    gains: dict[str, float] = Field(description="factor → speed-up ratio without this loss alone")
    simulation_error: float | None = Field(
        description="relative error of step times where each half of the steps is replayed with the transfers of "
        "the other: |replayed − measured| ÷ measured, mean over ranks; above 0.05 all results are indicative"
    )
    clock_error_s: float | None
    phases: PhaseTimes
    waiting: Waiting | None = Field(default=None, description="None: one rank, or no rank waited")
    findings: list[Finding] = Field(
        description="largest gain first; an upper bound (high = value) counts with half of its uncertain part"
    )
    healthy: str | None = Field(description="one sentence where there are no findings")
    notes: list[str] = Field(description="sentences on what was left out or cannot be resolved")


class LatenessMap(Record):
    """Lateness of each rank at the collective, against the median rank, by step; both thinned evenly."""

    steps: list[int]
    ranks: list[int]
    late_s: list[list[float]] = Field(description="one row per step, one column per rank; negative: early")


class TimelinePart(Record):
    """One phase of one rank, or one bucket of gradients on the network, which all ranks share."""

    rank: int | None = Field(description="None: the network")
    step: int
    part: str = Field(description="a phase, or bucket")
    begin_s: float = Field(description="since the begin of the timeline")
    end_s: float


class ExplainDetail(Record):
    """Data for the charts of one explanation in a report."""

    result: ExplainResult
    lateness: LatenessMap | None
    caused_s_per_step: list[list[float]] | None = Field(
        description="row: late rank, column: waiting rank; None: more ranks than a page shows, or no rank waited"
    )
    timeline: list[TimelinePart] = Field(description="of a few typical steps on the aligned clock")
