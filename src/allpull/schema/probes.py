"""``probes/<name>.json``: what a probe measured, before any analysis."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from allpull.schema.base import Record

Ping = Annotated[list[int], Field(min_length=8, max_length=8)]
LoaderState = Literal["cold", "warm", "cached", "memory"]
StorageOp = Literal["write", "read", "random read", "create", "stat", "open", "unlink"]
StorageWay = Literal["direct", "dropped", "cached"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class Repetitions(Record):
    """One size of an all-reduce."""

    size_bytes: int = Field(ge=1)
    times_s: list[Annotated[float, Field(gt=0)]] = Field(min_length=1, description="the maximum over ranks of each")


class AllreduceAnswer(Record):
    """``probes/allreduce.json``."""

    schema_: str = Field(alias="schema")
    ranks: int = Field(ge=1)
    backend: str | None = Field(None, description="back-end: gloo or nccl; None: an older probe")
    device: str | None = Field(None, description="device of the data: cpu or cuda")
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


Seconds = Annotated[float, Field(ge=0)]


class LoaderWindow(Record):
    """A window of one rank's loading."""

    samples: int = Field(ge=0)
    seconds: float = Field(ge=0)


class LoaderDraw(Record):
    """What one rank loaded in one point."""

    windows: list[LoaderWindow]
    samples: int = Field(ge=0, description="in all windows and the first batch, which belongs to none")
    cpu_s: float = Field(ge=0, description="CPU time of all threads and workers of the rank meanwhile")


class LoaderMeasured(Record):
    """One point: a number of ranks at once, each with a number of threads, from files in one state."""

    ranks: int = Field(ge=1)
    threads: int = Field(ge=1, description="of each rank; of image files worker processes")
    state: LoaderState
    resident: float | None = Field(
        description="share of the files in host 0's page cache when the point began; None: not reported"
    )
    draws: list[LoaderDraw] = Field(description="by rank")


class LoaderShuffle(Record):
    """The shuffle quality of epoch 0, with as many ranks as were started."""

    quality: float | None = Field(
        description="share of neighbours in the pack that land in different global batches, divided by that of a "
        "full shuffle; None: one batch holds all"
    )
    records_per_read: float = Field(description="mean number of consecutive records that one rank gets with one read")
    seen_share: float = Field(ge=0, le=1, description="smallest share of the records that a rank ever sees")
    label_distance: float | None = Field(
        description="largest total variation distance between the labels that a rank sees and those of all records; "
        "None: several labels per record"
    )
    label_distance_by_chance: float | None = Field(description="the same with records distributed at random")


class LoaderAnswer(Record):
    """``probes/loader.json``."""

    schema_: str = Field(alias="schema")
    data: str
    kind: str = Field(description="kind of the pack; files: image files read one by one; memory: held in memory")
    records: int = Field(ge=1)
    bytes_per_sample: float = Field(gt=0, description="as stored, mean over the records")
    size: int = Field(ge=1, description="pixels of a side that the model sees")
    batch: int = Field(ge=1, description="samples of a rank's batch")
    resizer: str | None
    ranks: int = Field(ge=1)
    ranks_per_host: int = Field(ge=1)
    cores: int = Field(ge=1, description="CPUs that the ranks of a host may use, on the host with the fewest")
    shuffle: LoaderShuffle | None = Field(description="None: in memory or one file a sample: complete")
    odd: int = Field(ge=0, description="samples that needed another decoder or could not be decoded, on rank 0")
    points: list[LoaderMeasured]
    left_out: list[str] = Field(description="what was requested but could not be measured, and why")


class StoragePart(Record):
    """One repetition on one rank."""

    ops: int = Field(ge=0)
    seconds: float = Field(ge=0)


class StorageMeasured(Record):
    """One operation of one size, by a number of ranks at once with a number of threads each."""

    ranks: int = Field(ge=1)
    threads: int = Field(ge=1, description="of each rank")
    op: StorageOp
    size_bytes: int = Field(ge=0, description="of one operation; 0: it moves no data")
    parts: list[list[StoragePart]] = Field(description="by repetition, then by rank")


class StorageAnswer(Record):
    """``probes/storage.json``."""

    schema_: str = Field(alias="schema")
    path: str
    file_system: str | None = Field(description="on host 0")
    file_bytes: int = Field(ge=1, description="of each rank's own file")
    way: StorageWay
    why: str = Field(description="why reads do not bypass the page cache; empty where they do")
    ceiling_ops_per_s: float = Field(
        gt=0, description="4 KiB reads per second by one thread from the page cache: the limit of the probe itself"
    )
    ranks: int = Field(ge=1)
    ranks_per_host: int = Field(ge=1)
    points: list[StorageMeasured]


class ComputeMeasured(Record):
    """The steps of one batch size, precision and number of threads, in seconds."""

    batch: int = Field(ge=1)
    precision: Precision
    threads: int = Field(ge=1)
    step_s: list[Seconds] = Field(min_length=1)
    forward_s: list[Seconds]
    backward_s: list[Seconds]
    optimizer_s: list[Seconds]
    issue_s: list[Seconds] | None = Field(
        description="in which the host issued the step to an accelerator; None: the CPU computes"
    )


class BucketMeasured(Record):
    """One bucket of gradients, in the order in which they became ready."""

    size_bytes: int = Field(ge=1)
    ready_s: list[Seconds] = Field(min_length=1, description="after backward began, of each step")


class BucketsMeasured(Record):
    """The buckets of DistributedDataParallel on one rank, which waits for no other."""

    batch: int = Field(ge=1)
    precision: Precision
    threads: int = Field(ge=1)
    backward_s: list[Seconds] = Field(min_length=1)
    buckets: list[BucketMeasured]


class Noise(Record):
    """How steady the machine was: the same work, repeated."""

    median_s: float = Field(gt=0)
    p95_over_fastest: float = Field(ge=1, description="95th percentile ÷ the fastest; 1 on a quiet machine")
    load_1min: float | None


class LargestBatch(Record):
    """The largest batch whose training step fits into memory, on one device and without other ranks."""

    precision: Precision
    batch: int = Field(ge=1)
    too_large: int | None = Field(description="the smallest batch that was tried and does not fit; None: none was")
    peak_bytes: int = Field(ge=0, description="in use at most, of the GPU or of the process")
    bytes_per_sample: float | None = Field(description="slope of the peak from half of that batch, or less, to it")
    limit_bytes: int = Field(ge=0, description="memory that it had to fit into")


class ComputeAnswer(Record):
    """``probes/compute.json``."""

    schema_: str = Field(alias="schema")
    model: str
    device: str
    channels: int = Field(ge=1)
    classes: int = Field(ge=1)
    size: int = Field(ge=1, description="pixels of a side")
    parameters: int = Field(ge=0, description="trainable parameters")
    flop_per_sample: float | None = Field(
        description="forward and backward, a multiplication and an addition counted as two; None: not counted"
    )
    matmul_flop_per_s: dict[str, float] = Field(
        description="precision → rate of a large matrix product here, with the most threads requested"
    )
    bucket_bytes: int = Field(ge=1, description="largest bucket size requested")
    noise: list[Noise] = Field(description="before and after the measurement")
    points: list[ComputeMeasured]
    buckets: list[BucketsMeasured]
    largest: list[LargestBatch] = Field(default_factory=list, description="by precision; empty: not requested")
    left_out: list[str] = Field(description="what was requested but could not be measured, and why")
