"""The result of `allpull explain` (DESIGN §5). Names carry SI units; intervals are 95 %."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.idle import AcceleratorIdle
from allpull.schema.pop import PopEfficiencies
from allpull.schema.results import Interval

INDICATIVE = 0.05  # of the measured time: a replay that misses it by more is not that run, and prices are indicative


class ExplainedWindow(Record):
    """The steps on which the explanation is based: consecutive, but for those of several profiler windows."""

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
        description="all blocked time of the recorded ranks, in place of these three where they are None",
    )
    computational: Interval | None = Field(description="None without a reference run")
    global_: Interval | None = Field(alias="global", description="None without a reference run")


class PhaseTimes(Record):
    """Seconds per step of each phase over the window: mean over ranks, and of each rank. None: not measured."""

    mean: dict[str, float | None]
    per_rank: dict[str, list[float] | None]


class Evidence(Record):
    """One number that supports a finding."""

    what: str = Field(description="description, such as 'caused waiting of rank 3'")
    value: float
    unit: str = Field(description="s, share, bytes/s, count, times and so on")
    low: float | None = None
    high: float | None = None
    source: str = Field(description="where it comes from, such as 'steps 5 to 60 of all ranks'")


Place = Literal["shell", "starter", "environment", "program"]
"""Where a line goes: a shell; the command that starts the ranks, or its job; the environment of that command; the
program."""


class RemedyLine(Record):
    """A part of a remedy to copy."""

    place: Place
    line: str = Field(description="a command, words of one, a variable, or a line of Python, as the remedy has it")


class Finding(Record):
    """One fault, what it costs, and what to do. Advice is a finding whose cost no measurement of this run shows."""

    rule: str
    title: str
    ranks: list[int] = Field(description="the culprits; empty: all of them")
    hosts: list[str] = Field(description="hosts of the culprits; empty: all of them")
    loss_s_per_step: float | None = Field(description="of the job's step, by replay without the fault; None: advice")
    loss_share: float | None = Field(description="of the mean step, where others hide the fault of that without these")
    gain: Interval | None = Field(
        description="speed-up ratio without the fault, with its 95 % interval. Where `high` equals `value` and"
        " `low` is below, `value` is an upper bound, and `low` what is certain"
    )
    is_hidden: bool = Field(False, description="whether loss and gain are of a step without the faults that hide this")
    remedy: str = Field(description="one concrete thing: the flag, the line, the option")
    options: list[str] | None = Field(
        default=None,
        description="keys of `--set` and environment variables that the remedy names; None: stored by an older version",
    )
    lines: list[RemedyLine] | None = Field(
        default=None, description="commands and edits in the remedy, in its order; None: stored by an older version"
    )
    evidence: list[Evidence]
    wrong_when: str
    advice: bool = False


class CausedWaiting(Record):
    """How long one rank waited for another, s per step."""

    culprit: int
    victim: int
    seconds: float


class Waiting(Record):
    """Which rank made which wait, and in which phase, s per step; phases and unattributed sum to the rows."""

    caused_s_per_step: list[list[float]] | None = Field(
        description="row: who was late, column: who waited; None: more ranks than a page shows; pairs replace it"
    )
    pairs: list[CausedWaiting] = Field(description="longest waits first, only those that matter")
    phases: dict[str, list[float]] = Field(
        description="phase, or transfer → by rank, the waiting of others that this phase of the rank caused"
    )
    unattributed: list[float] = Field(description="by rank, the waiting of others that no phase caused")


class ExplainResult(Record):
    """One run explained."""

    schema_: str = Field(alias="schema")
    run: str
    reference: str | None
    ranks: int
    hosts: int
    window: ExplainedWindow
    efficiency: Efficiency | None = Field(description="None: too few steps, or the clocks of ranks are not comparable")
    gains: dict[str, float] = Field(description="factor → speed-up ratio without only this loss")
    simulation_error: float | None = Field(
        description="error of steps when each half of them is replayed with the transfers of the "
        f"other: |replayed − measured| ÷ measured, mean over ranks; above {INDICATIVE} all results are indicative. A "
        "small one does not show that the model is right: work is taken as recorded"
    )
    clock_error_s: float | None = Field(
        description="how wrong the time between two ranks may be, by the clocks of their hosts and of their devices;"
        " None: they do not compare"
    )
    pop: PopEfficiencies | None = Field(
        default=None, description="POP efficiencies of the same window; None: too few records, or an older version"
    )
    idle: AcceleratorIdle | None = Field(default=None, description="of the whole run, as in `show`")
    phases: PhaseTimes
    waiting: Waiting | None = Field(default=None, description="None: one rank, or no rank waited")
    findings: list[Finding] = Field(
        description="largest gain first; an upper bound (high = value) counts with half of its uncertain part"
    )
    healthy: str | None = Field(description="one sentence, if there are no findings")
    notes: list[str] = Field(description="what was left out or cannot be resolved")


class LatenessMap(Record):
    """How much later than the median of its ranks each rank arrived, by step; both thinned evenly."""

    steps: list[int]
    ranks: list[int]
    late_s: list[list[float]] = Field(
        description="a row for each of steps, a column for each of ranks; early is negative"
    )


class TimelinePart(Record):
    """One phase of one rank; or a bucket of gradients on the network, which all ranks share."""

    rank: int | None = Field(description="None: the network")
    step: int
    part: str = Field(description="a phase, or bucket")
    begin_s: float = Field(description="after the start of the timeline")
    end_s: float


class ExplainDetail(Record):
    """What a report draws from one explanation beyond its numbers."""

    result: ExplainResult
    lateness: LatenessMap | None
    caused_s_per_step: list[list[float]] | None = Field(
        description="row: who was late, column: who waited; None: more ranks than a page shows, or no rank waited"
    )
    timeline: list[TimelinePart] = Field(description="of a few ordinary steps on the aligned clock")
