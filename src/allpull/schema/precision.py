"""How many times as fast one precision of the arithmetic is as another."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.interval import Interval


class PrecisionRatio(Record):
    """The throughput of one precision over that of another at the same number of ranks."""

    ranks: int
    precision: str
    over: str
    ratio: Interval = Field(description="of geometric means where several runs have that size; from what varies within")
    runs: list[str] = Field(description="run ids, those of `precision` first")
