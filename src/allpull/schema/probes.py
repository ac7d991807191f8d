"""``probes/<name>.json``: what a probe measured, before anything is made of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from allpull.schema.base import Record

Ping = Annotated[list[int], Field(min_length=8, max_length=8)]


class Repetitions(Record):
    """One size of an all-reduce."""

    size_bytes: int = Field(ge=1)
    times_s: list[Annotated[float, Field(gt=0)]] = Field(min_length=1, description="the maximum over ranks of each")


class AllreduceAnswer(Record):
    """``probes/allreduce.json``."""

    schema_: str = Field(alias="schema")
    ranks: int = Field(ge=1)
    results: list[Repetitions]


class Pings(Record):
    """Pings of one host to host 0.

    Each is sent, received, answered, back on the monotonic clocks, then the same on the real-time clocks, in ns.
    """

    host: int = Field(ge=1)
    pings: list[Ping]


class ClockAnswer(Record):
    """``probes/clock.json``."""

    schema_: str = Field(alias="schema")
    hosts: int = Field(ge=1)
    against: list[Pings]
