"""Results of the loader, storage and compute probes: the JSON that prediction and others build on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.probes import LargestBatch, LoaderShuffle, LoaderState, Noise, Precision, StorageOp, StorageWay
from allpull.schema.results import Interval


class Check(Record):
    """One fact about this machine: whether it would spoil a measurement, what was found, and what to do."""

    name: str
    state: Literal["ok", "warn", "bad", "unknown"]
    found: str
    advice: str = Field("", description="empty if there is nothing to do")


class DoctorResult(Record):
    """The result of `allpull doctor`."""

    schema_: str = Field(alias="schema")
    checks: list[Check]


class Spread(Record):
    """The median of repetitions, and the range in which nine of ten lie."""

    median: float
    low: float = Field(description="5 % quantile")
    high: float = Field(description="95 % quantile")
    count: int = Field(ge=1, description="repetitions")


class LoaderPoint(Record):
    """One point of the loader; rates are those of all ranks together."""

    ranks: int
    hosts: int
    threads: int = Field(description="of each rank")
    state: LoaderState = Field(
        description="of the files: cold (nothing in the page cache), warm (whatever a cold pass has just left in it), "
        "cached (all in it); memory: a data set held in memory"
    )
    resident: float | None
    samples: int = Field(description="in all windows")
    samples_per_s: Spread
    samples_per_cpu_s: float | None = Field(description="samples per second of CPU time: the rate of one core")
    read_bytes_per_s: float = Field(description="samples_per_s times the mean size of a record")


class LoaderKnee(Record):
    """The fewest threads with nearly the highest rate: more gain little."""

    ranks: int
    state: LoaderState
    threads: int | None = Field(description="None: the largest number tried is still the fastest by far")
    samples_per_s: float = Field(description="the highest rate")


class LoaderResult(Record):
    """What `allpull probe loader` answers."""

    schema_: str = Field(alias="schema")
    run: str
    data: str
    kind: str
    records: int
    bytes_per_sample: float
    size: int
    batch: int
    resizer: str | None
    ranks: int
    hosts: int
    cores: int
    shuffle: LoaderShuffle | None
    odd: int
    points: list[LoaderPoint]
    knees: list[LoaderKnee]
    left_out: list[str]


class StoragePoint(Record):
    """One operation; rates are those of all ranks together."""

    ranks: int
    hosts: int
    threads: int = Field(description="of each rank")
    op: StorageOp
    size_bytes: int
    ops: int = Field(description="operations counted")
    ops_per_s: Spread
    bytes_per_s: Spread | None = Field(description="None: the operation moves no data")
    per_host_ops_per_s: float = Field(description="median ÷ hosts")
    of_alone: float | None = Field(
        description="per_host_ops_per_s ÷ that of one host with as many ranks and threads; None: this is one host"
    )


class StorageResult(Record):
    """What `allpull probe storage` answers."""

    schema_: str = Field(alias="schema")
    run: str
    path: str
    file_system: str | None
    file_bytes: int
    way: StorageWay = Field(
        description="how reads were kept from the page cache: direct (O_DIRECT), dropped (its pages dropped before "
        "each repetition), or cached: they were not"
    )
    why: str
    ceiling_ops_per_s: float
    ranks: int
    hosts: int
    points: list[StoragePoint]


class ComputePoint(Record):
    """The step of one batch size."""

    batch: int
    precision: Precision
    threads: int
    step_s: Spread
    forward_s: float = Field(description="median")
    backward_s: float
    optimizer_s: float
    issue_s: float | None
    samples_per_s: float = Field(description="batch ÷ median step")
    flop_per_s: float | None
    peak_share: float | None = Field(description="flop_per_s ÷ rate of a large matrix product in this precision")


class ComputeFit(Record):
    """time(batch) = max(floor, fixed + per_sample · batch), fitted to the medians of all batch sizes."""

    precision: Precision
    threads: int
    part: Literal["step", "forward", "backward", "optimizer"]
    fixed_s: Interval
    per_sample_s: Interval
    floor_s: Interval | None = Field(description="None: no two batch sizes take the same time")
    knee: Interval | None = Field(
        description="batch below which the time no longer falls: (floor − fixed) ÷ per_sample; None where floor_s is"
    )
    worst_error: float = Field(description="largest |fit − measured| ÷ measured over the batch sizes")


class BucketReady(Record):
    """When the gradients of one bucket were all ready."""

    size_bytes: int
    ready_s: Spread = Field(description="after backward began")
    ready_share: float = Field(description="median ÷ median backward")


class ComputeBuckets(Record):
    """The buckets of DistributedDataParallel on one rank, in the order in which they became ready."""

    batch: int
    precision: Precision
    threads: int
    backward_s: Spread
    buckets: list[BucketReady]


class ComputeResult(Record):
    """What `allpull probe compute` answers."""

    schema_: str = Field(alias="schema")
    run: str
    model: str
    device: str
    channels: int
    classes: int
    size: int
    parameters: int
    flop_per_sample: float | None
    bucket_bytes: int
    noise: list[Noise]
    points: list[ComputePoint]
    fits: list[ComputeFit]
    buckets: list[ComputeBuckets]
    largest: list[LargestBatch] = Field(default_factory=list, description="by precision; empty: not requested")
    left_out: list[str]
