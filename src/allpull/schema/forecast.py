"""Result of `allpull predict RUN…`: larger sizes of a measured job, term by term, or why they cannot be known.

Intervals of a forecast cover 90 %.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.interval import Interval
from allpull.schema.target import TargetForecast


class CalibrationRun(Record):
    """A run or a probe that parameters were fitted to."""

    run: str = Field(description="run id")
    kind: Literal["run", "probe"]
    ranks: int
    hosts: int
    batch: float | None = Field(description="samples per rank and step; None: a probe")
    steps: int = Field(description="steps, or repetitions of a probe, that were used")
    step_s: float | None = Field(description="mean measured step; None: a probe")


class ForecastParameter(Record):
    """One parameter of the model."""

    name: str
    unit: str
    value: Interval
    state: Literal["measured", "weakly identified", "assumed"]
    reason: str | None = Field(description="why it is not measured; None: it is")
    source: str = Field(description="run ids, a stated fact, or a publication")


class EpochForecast(Record):
    """An epoch of the job."""

    steps: int
    seconds: Interval
    terms: dict[str, float] = Field(description="seconds by term; they sum to the epoch")


class ForecastSize(Record):
    """One size of the job."""

    ranks: int
    hosts: int
    batch: float = Field(description="samples per rank and step")
    step_s: Interval
    throughput: Interval = Field(description="samples/s of the whole job")
    speedup: Interval = Field(description="throughput over that of `speedup_reference`")
    efficiency: Interval = Field(description="speed-up over the ideal one")
    terms: dict[str, float] = Field(description="seconds of a step by term; they sum to `step_s.value`")
    epoch: EpochForecast | None = Field(description="None: the samples of an epoch are not known")
    extrapolation: float = Field(description="ranks ÷ the largest calibrated ranks")
    bottleneck: str = Field(description="the term, beside compute, that costs most")
    measured_step_s: float | None = Field(description="mean step of a run of this size that was held back")


class Baseline(Record):
    """What simpler arithmetic says of one size, from the same measurements."""

    name: Literal["linear scaling", "no overlap", "perfect overlap"]
    ranks: int
    hosts: int
    step_s: float


class WhatIf(Record):
    """One change of one size: the waterfall from its forecast."""

    change: str = Field(description="KEY=VALUE")
    ranks: int
    hosts: int
    step_s: Interval
    throughput: Interval
    change_s: dict[str, float] = Field(description="seconds that each term of the step changes by")
    bottleneck: str = Field(description="after the change")
    epoch: EpochForecast | None = Field(None, description="None: the samples of an epoch are not known")


class RefusedForecast(Record):
    """A size that cannot be forecast."""

    ranks: int
    hosts: int
    reason: str


class NextMeasurement(Record):
    """The one measurement that would narrow the interval most."""

    parameter: str
    command: str
    share: float = Field(description="of the variance of the step at the largest size, that this parameter causes")


class ForecastResult(Record):
    """Result of `allpull predict RUN…`."""

    schema_: str = Field(alias="schema")
    program: str
    calibration: list[CalibrationRun]
    speedup_reference: int | None = Field(description="ranks of the run that speed-ups refer to; None: refused")
    parameters: list[ForecastParameter]
    predictions: list[ForecastSize]
    baselines: list[Baseline]
    waterfall: list[WhatIf]
    refused: str | None = Field(description="why nothing could be forecast; None: something was")
    refused_sizes: list[RefusedForecast]
    next_measurement: NextMeasurement | None
    notes: list[str]
    targets: list[TargetForecast] = Field(
        default_factory=list, description="a training to the target on each size; empty: none was asked for"
    )
