"""Result of `allpull predict` (DESIGN §5): the next sizes, each with an interval, or why there is none."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.results import Interval


class CalibratedSize(Record):
    """One measured or published size that the forecast is made from."""

    ranks: int
    hosts: int | None
    throughput: float = Field(description="in the unit of the result")


class PredictedSize(Record):
    """One size. Intervals cover 90 %."""

    setup: str = Field(description="model, framework, device, batch and precision, as the table states them")
    ranks: int
    extrapolation: float = Field(description="ranks ÷ the largest calibrated ranks")
    throughput: Interval = Field(description="in the unit of the result")
    speedup: Interval = Field(description="over the smallest calibrated size")
    efficiency: Interval = Field(description="speed-up over the ideal one")
    step_s: Interval | None = Field(description="None where the batch is not known, or rates are relative")
    terms: dict[str, float] = Field(
        description="shares of the step: `base` would remain on one rank, `growth` comes with more of them"
    )
    measured: float | None = Field(description="throughput of this size in the table, held back; None: not in it")


class RefusedSize(Record):
    """A size, or a whole setup, that cannot be predicted."""

    setup: str
    ranks: int | None = Field(description="None: no size of this setup")
    reason: str


class PredictResult(Record):
    """Result of `allpull predict --table FILE.csv --series NAME`."""

    schema_: str = Field(alias="schema")
    series: str
    unit: str = Field(description="of throughput: images/s, or × the base where the table has speed-ups alone")
    calibration: list[CalibratedSize]
    unidentified: list[str] = Field(description="what these sizes cannot tell")
    next_measurement: str | None = Field(description="what would narrow the answer most")
    predictions: list[PredictedSize]
    refused: str | None = Field(description="why nothing could be predicted; None: something was")
    refused_sizes: list[RefusedSize]
    learned_from: int = Field(description="published series whose held-back sizes gave the widths")
    notes: list[str]
