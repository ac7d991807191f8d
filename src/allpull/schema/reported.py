"""Everything that `allpull report` draws, of one or more runs."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.explained import ExplainDetail
from allpull.schema.operators import OperatorSummary
from allpull.schema.results import RunDetail, ShowResult, UsageSeries


class ProgramTable(Record):
    """The runs of one program side by side."""

    program: str = Field("", description="name of the script or recipe; empty where all runs are of one program")
    show: ShowResult
    words: list[str] = Field(description="summary sentences, most important first")
    caveats: list[str] = Field(
        default_factory=list, description="what to know before the first of ``words``; some are among them"
    )


class ScalingReport(ProgramTable):
    """Everything that `allpull report` draws: the runs of one program, and tables of the others beside it."""

    schema_: str = Field(alias="schema")
    details: list[RunDetail] = Field(description="in the order of show.runs")
    explained: list[ExplainDetail] = Field(
        default_factory=list, description="the runs that could be explained, in the order of show.runs"
    )
    others: list[ProgramTable] = Field(default_factory=list, description="one per other program")
    usage: list[UsageSeries] = Field(
        default_factory=list, description="of the run with the most ranks: step time, CPU, memory, network and so on"
    )
    operators: OperatorSummary | None = Field(None, description="of the run with the most ranks; None: no window")
    without_steps: list[RunDetail] = Field(
        default_factory=list, description="probes and jobs that made no step, beside runs that did"
    )
    damaged: list[str] = Field(
        default_factory=list, description="runs of a folder that could not be read, each with the reason"
    )
