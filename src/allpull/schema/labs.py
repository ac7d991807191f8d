"""Results of `allpull lab`: what a lab did, as its page shows it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record

Share = Literal["strong", "weak"]
Without = Literal["broadcast", "average"]
Algorithm = Literal["ring", "tree", "naive"]


class Position(Record):
    """The line y = slope · x + offset after ``update`` updates, and its mean squared error over all samples."""

    update: int
    slope: float
    offset: float
    loss: float


class LineRank(Record):
    """The path of one rank."""

    rank: int
    path: list[Position]
    gradient: list[tuple[float, float]] = Field(
        description="of its own part of the batch by slope and offset, before each shown update but the last"
    )


class SgdResult(Record):
    """Result of `allpull lab sgd`."""

    schema_: str = Field(alias="schema")
    batch: int = Field(description="samples of an update, over all ranks")
    ranks: int
    share: Share = Field(description="strong: ranks divide the batch; weak: each rank has a whole one")
    without: Without | None = Field(description="what the ranks leave out of data-parallel training")
    epochs: int
    updates: int
    rate: float
    seed: int
    samples: int
    best: Position = Field(description="the optimum over these samples; update 0")
    loss_end: float = Field(description="of rank 0 after the last update")
    path: list[Position] = Field(description="of rank 0: its first updates, then evenly spaced ones")
    by_rank: list[LineRank] = Field(description="of real ranks; empty for one rank, which needs no other process")
    shrinks: float | None = Field(
        description="share by which one update lowers the slope's error, median over the path; None: it is random"
    )
    apart: float = Field(description="largest distance between two ranks at the end, in slope and offset; 0: the same")
    differ: list[int] = Field(description="ranks whose replica differs, as the replica check reports")


class RingMessage(Record):
    """A message of one step: ``sender`` sends ``chunk`` to ``receiver``."""

    step: int
    sender: int
    receiver: int
    chunk: int
    size_bytes: int


class TimedExchange(Record):
    """One all-reduce by one algorithm over the first ``ranks``."""

    algorithm: Algorithm
    ranks: int
    size_bytes: int
    seconds: float = Field(description="median over repetitions, of the slowest rank")


class CountedExchange(Record):
    """What one all-reduce over all ranks sends, counted on real sockets."""

    algorithm: Algorithm
    messages_per_rank: list[int] = Field(description="sent, by rank")
    bytes_per_rank: list[int] = Field(description="sent, by rank, as the kernels of the receivers count them")
    busiest_bytes: int = Field(description="sent and received by the busiest rank")


class RingResult(Record):
    """Result of `allpull lab ring`."""

    schema_: str = Field(alias="schema")
    ranks: int
    size_bytes: int = Field(description="of the gradients of one rank")
    link: str | None = Field(description="of each virtual host; None: within this machine")
    right: bool = Field(description="every rank has the sum of all, with every algorithm and size")
    messages_per_rank: int = Field(description="of the ring, counted; the most of a rank")
    bytes_per_rank: int = Field(description="of the ring, counted; the most of a rank")
    formula_messages: int = Field(description="2(N−1)")
    formula_bytes: float = Field(description="2(N−1)/N · S")
    exchanges: list[CountedExchange]
    times: list[TimedExchange]
    messages: list[RingMessage] = Field(description="of the ring, in order")
    summed: list[list[list[int]]] = Field(
        description="what each rank holds of each chunk, by step (0: before the first), rank and chunk: bit r is set "
        "where rank r's numbers are in it"
    )
