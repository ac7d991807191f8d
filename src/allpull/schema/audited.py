"""Result of `allpull study audit` (DESIGN §5): published numbers that do not follow from each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record

Check = Literal[
    "samples",
    "share-not-training",
    "speed-up",
    "efficiency",
    "linear",
    "accuracy",
    "product",
    "gain",
    "extrapolated",
    "first-epoch",
    "efficiency-by-time",
    "warm-up",
    "page-cache",
]


class Range(Record):
    """All values that a rounded number, or a calculation with rounded numbers, may stand for."""

    low: float
    high: float


class AuditFinding(Record):
    """One thing that does not follow, or that a reader has to know."""

    check: Check
    kind: Literal["slip", "observation"] = Field(description="slip: the numbers contradict each other")
    series: str
    rows: list[int] = Field(description="line numbers in the file, the header being line 1")
    claimed: Range | None = Field(description="as published, widened by its rounding; None where nothing is claimed")
    computed: Range
    text: str


class AuditResult(Record):
    """Result of `allpull study audit FILE.csv …`."""

    schema_: str = Field(alias="schema")
    files: list[str]
    rows: int = Field(description="rows that were read")
    findings: list[AuditFinding]
    notes: list[str] = Field(description="what could not be checked, and why")
