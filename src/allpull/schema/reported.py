"""Everything that `allpull report` draws, of one or more runs."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.explained import ExplainDetail
from allpull.schema.results import RunDetail, ShowResult


class ScalingReport(Record):
    """Everything that `allpull report` draws."""

    schema_: str = Field(alias="schema")
    show: ShowResult
    words: list[str] = Field(description="summary sentences, most important first")
    details: list[RunDetail] = Field(description="in the order of show.runs")
    explained: list[ExplainDetail] = Field(
        default_factory=list, description="the runs that could be explained, in the order of show.runs"
    )
