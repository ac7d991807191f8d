"""What `allpull explain` answers (DESIGN §5). SI units stand in the names; intervals are 95 %."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.results import Interval


class WindowSeen(Record):
    """The consecutive steps that the explanation rests on."""

    steps: int = Field(ge=0)
    seconds: float = Field(ge=0)
    first_step: int | None
    last_step: int | None
    level: Literal["step", "bucket"] = Field(
        description="bucket: it is known when each was ready; step: waiting is an upper bound while the network is busy"
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
        description="all that the recorded ranks were blocked, in place of these three where they are None",
    )
    computational: Interval | None = Field(description="None without a reference run")
    global_: Interval | None = Field(alias="global", description="None without a reference run")


class PhaseTimes(Record):
    """Seconds per step of each phase over the window: mean over ranks, and of each rank. None: not measured."""

    mean: dict[str, float | None]
    per_rank: dict[str, list[float] | None]


class Evidence(Record):
    """One number that a finding rests on."""

    what: str = Field(description="in words, such as 'caused waiting of rank 3'")
    value: float
    unit: str = Field(description="s, share, bytes/s, count and so on")
    low: float | None = None
    high: float | None = None
    source: str = Field(description="where it comes from, such as 'steps 5 to 60 of all ranks'")


class Finding(Record):
    """One fault, what it costs, and what to do. Advice is what no measurement of this run can price."""

    rule: str
    title: str
    ranks: list[int] = Field(description="the culprits; empty: all of them")
    hosts: list[str] = Field(description="theirs; empty: all of them")
    loss_s_per_step: float | None = Field(description="of the job's step, as the replay without it says; None: advice")
    loss_share: float | None
    gain: Interval | None = Field(description="speed-up ratio if it were gone")
    remedy: str = Field(description="one concrete thing: the flag, the line, the option")
    options: list[str] | None = Field(
        default=None,
        description="keys of `--set` and environment variables that the remedy names; None: stored before this was",
    )
    evidence: list[Evidence]
    wrong_when: str
    advice: bool = False


class Caused(Record):
    """How long one rank waited for another, s a step."""

    culprit: int
    victim: int
    seconds: float


class Waiting(Record):
    """Who made whom wait, and by what, s a step of the window; phases and unattributed sum to the rows."""

    caused_s_per_step: list[list[float]] | None = Field(
        description="row: who was late, column: who waited; None: more ranks than a page shows, and pairs stand for it"
    )
    pairs: list[Caused] = Field(description="those that waited longest first, and no more than say something")
    phases: dict[str, list[float]] = Field(
        description="phase, or transfer → by rank the waiting of others that this phase of it caused"
    )
    unattributed: list[float] = Field(description="by rank the waiting of others of which no phase was the cause")


class ExplainResult(Record):
    """One run explained."""

    schema_: str = Field(alias="schema")
    run: str
    reference: str | None
    ranks: int
    hosts: int
    window: WindowSeen
    efficiency: Efficiency | None = Field(description="None: too few steps, or moments of ranks do not compare")
    gains: dict[str, float] = Field(description="factor → speed-up ratio if only this were gone")
    simulation_error: float | None = Field(
        description="by how much steps come out wrong where each half of them is replayed with the transfers of the "
        "other: |replayed − measured| ÷ measured, mean of ranks; above 0.05 all is indicative"
    )
    clock_error_s: float | None
    phases: PhaseTimes
    waiting: Waiting | None = Field(default=None, description="None: one rank, or nobody waited")
    findings: list[Finding] = Field(
        description="largest gain first; one that is an upper bound (high = value) counts for half of what is in doubt"
    )
    healthy: str | None = Field(description="one sentence, where nothing was found")
    notes: list[str] = Field(description="what was left out or is not resolvable, in words")


class LatenessMap(Record):
    """How much later than the median of its ranks each rank met the others, by step; both thinned evenly."""

    steps: list[int]
    ranks: list[int]
    late_s: list[list[float]] = Field(
        description="a row for each of steps, a column for each of ranks; early is negative"
    )


class TimelinePart(Record):
    """What one rank did for a while, a phase; or a bucket of gradients on the network, which all ranks share."""

    rank: int | None = Field(description="None: the network")
    step: int
    part: str = Field(description="a phase, or bucket")
    begin_s: float = Field(description="after the begin of the timeline")
    end_s: float


class ExplainDetail(Record):
    """What a report draws of one explanation beyond its numbers."""

    result: ExplainResult
    lateness: LatenessMap | None
    caused_s_per_step: list[list[float]] | None = Field(
        description="row: who was late, column: who waited; None: more ranks than a page shows, or nobody waited"
    )
    timeline: list[TimelinePart] = Field(description="of a few ordinary steps on the aligned clock")
