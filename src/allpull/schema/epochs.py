"""Where the time of epochs goes, how long a training took, and how many times as fast as another."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.interval import Interval


class EpochParts(Record):
    """Seconds of an epoch of the whole job. The parts are disjoint and sum to ``total``."""

    total: float = Field(ge=0, description="from its begin to that of the next epoch, or to the end of the last")
    training: float = Field(ge=0, description="from its first batch to its last step, without what is below")
    evaluation: float = Field(ge=0, description="while any rank evaluated")
    checkpoint: float = Field(ge=0, description="while any rank wrote a checkpoint and none evaluated")
    start: float = Field(
        ge=0,
        description="until the last rank had its first batch: the start of its loader, and what an unedited program"
        " does since the last step where it was not seen to ask its loader for the batches of the epoch",
    )
    other: float = Field(ge=0, description="between its last step and its end, without evaluation and checkpoint")


class RecordedEpoch(EpochParts):
    """One complete epoch."""

    epoch: int = Field(ge=0, description="number of the epoch, from 0")
    steps: int = Field(ge=0)
    samples: int | None = Field(description="of all ranks; None: not recorded for all steps")


class EpochTime(EpochParts):
    """Mean over complete epochs but the first, which has the warm-up and a cold page cache; else that one alone.

    The last one is not in the mean either where what an unedited program did after its last step is not known.
    """

    epochs: int = Field(ge=1, description="in the mean")
    interval: Interval | None = Field(description="of the mean total, by Student's t; None: fewer than two epochs")
    shortest: float
    longest: float
    first: RecordedEpoch | None = Field(description="the first of this run; None: it is not complete")
    may_be_cut: bool = Field(
        False, description="the only epoch ended with its program, which may not have seen all samples in it"
    )
    each: list[RecordedEpoch] = Field(description="all complete epochs in order, thinned evenly to at most 1,000")


class AccuracyTime(Record):
    """How long a training took to an accuracy that the user states."""

    metric: str = Field(description="such as test_top1")
    wanted: float
    best: float | None = Field(description="the best value reported; None: none was")
    time_s: float | None = Field(description="from the begin of the first epoch; None: not reached, or not known")
    epoch: int | None = Field(description="epoch after which it was reached, from 0")


class EpochSpeedup(Record):
    """One run over the reference: how many times as fast. None: not known of both."""

    epoch: Interval | None = Field(description="epoch time of the reference ÷ that of this run")
    time_to_solution: float | None
    time_to_accuracy: float | None
    training_rate: float | None = Field(description="ratio of samples/s while training")
    overall_rate: float | None = Field(description="ratio of samples/s over whole epochs")
