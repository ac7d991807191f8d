"""A study: what its file says, which points it makes, and what was measured at each.

A *point* is one setting of all parameters; it is run once per *repeat*. A *series* is the points that differ in ranks
and hosts alone: speed-ups exist within a series.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.results import Interval, RunMetrics

Value = bool | int | float | str  # pydantic keeps the exact type: 1 stays a number, "yes" a text
Parameters = dict[str, Value]
"""Parameter → value.

A parameter is ``ranks``, ``hosts``, ``launcher``, an option such as ``train.batch``, ``env.`` and the name of a
variable,
or the name of a placeholder in the command.
"""

PointState = Literal["missing", "completed", "failed", "timeout", "skipped"]


class PlannedPoint(Record):
    """One point before it is run."""

    id: str = Field(description="the first 12 hexadecimal digits of the SHA-256 of its resolved configuration")
    parameters: Parameters
    series: Parameters = Field(description="its parameters apart from ranks, hosts and launcher")
    ranks: int
    hosts: int
    command: list[str] = Field(description="what a user would type to run this point alone")
    trainable_parameters: int | None = Field(description="of the network; None: a command, whose network is not known")
    cost_s: float | None = Field(description="expected seconds of all its repeats; None: nothing like it was measured")
    cost_from: str | None = Field(None, description="what the expectation is based on")
    repeats: int
    done: int = Field(ge=0, description="repeats that completed")
    labels: list[str] = Field([], description="of the parts of the study that it belongs to")


class PublishedPoint(Record):
    """One published measurement; None: not published."""

    ranks: int
    nodes: int | None
    batch_per_rank: int | None
    precision: str | None
    images_per_s: float | None = Field(description="of the whole job")
    speedup: float | None
    speedup_base: str | None = Field(None, description="over what; None: over the smallest size of the series")
    efficiency: float | None
    train_time_s: float | None
    epoch_time_s: float | None
    workers: int | None = Field(description="processes that load data, per rank")
    gpu: str
    parallel_efficiency: float | None = Field(None, description="POP, with the next two")
    load_balance: float | None = None
    communication_efficiency: float | None = None
    curve: str | None = Field(None, description="the run in `curves` of its series")
    caveat: str | None = Field(description="what to know before it is compared")


class PublishedEpoch(Record):
    """One epoch of a published learning curve; None: not published."""

    epoch: int
    end_s: float = Field(description="its end, since that of the first epoch recorded")
    images_per_s: float | None
    train_top1: float | None = Field(description="share of samples, as all accuracies")
    train_top5: float | None
    test_top1: float | None
    test_top5: float | None


class PublishedCurve(Record):
    """The epochs of one published run."""

    run: str
    ranks: int
    batch_per_rank: int | None
    epochs: list[PublishedEpoch]


class PublishedSeries(Record):
    """A published series, drawn beside what was measured."""

    series: str
    model: str
    framework: str
    source: str
    points: list[PublishedPoint]
    curves: list[PublishedCurve] = Field([], description="learning curves, fewest ranks first")


class Changed(Record):
    """A setting that ``--fit-here`` changed, so that the study fits this machine."""

    what: str
    full: str
    here: str


class StudyPlan(Record):
    """Result of `allpull study plan`."""

    schema_: str = Field(alias="schema")
    name: str
    title: str
    directory: str
    points: list[PlannedPoint]
    order: list[tuple[str, int]] = Field(description="(point, repeat) in the order in which they are run")
    cost_s: float | None = Field(description="expected seconds of what is missing; None where a point's is not known")
    rank_hours: float | None
    published: list[PublishedSeries]
    changed: list[Changed]
    notes: list[str]


class StudyRecord(Record):
    """``study.json``: which study a directory holds, and its points, so that it is read without what made them."""

    schema_: str = Field(alias="schema")
    name: str
    title: str
    scaling: Literal["weak", "strong"] | None
    created_utc: str
    allpull: str = Field(description="version of allpull")
    sha256: str = Field(description="of study.toml")
    repeats: int = Field(description="runs of each point; with half_width: at most")
    half_width: float | None
    run_half_width: float | None = Field(None, description="the interval of one run that ends it")
    points: list[RecordedPoint]
    published: list[str] = Field(description="names of published series")
    changed: list[Changed]
    notes: list[str] = Field([], description="those of the study file")


class RecordedPoint(Record):
    """A point of ``study.json``."""

    id: str
    parameters: Parameters
    series: Parameters
    ranks: int
    hosts: int
    labels: list[str] = Field([], description="of the parts of the study that it belongs to")


class Attempt(Record):
    """A line of ``attempts.jsonl``: how one repeat of a point went."""

    point: str
    repeat: int = Field(ge=0)
    run: str | None = Field(description="name of its run directory; None: it has none")
    state: PointState
    seconds: float = Field(ge=0, description="wall time, start and end of the job included")
    rank_s: float = Field(ge=0, description="ranks × seconds")
    reason: str | None = Field(None, description="why it did not complete")


class PointRun(Record):
    """One repeat of a point."""

    repeat: int
    state: PointState
    run: str | None = Field(description="run directory, relative to that of the study")
    seconds: float | None = Field(description="wall time, start and end of the job included")
    reason: str | None = Field(description="why it failed or was skipped")
    metrics: RunMetrics | None = Field(description="None unless it completed")


class StudyPoint(Record):
    """One point with its measurements, over its completed repeats. None: not measured."""

    id: str
    parameters: Parameters
    series: Parameters
    ranks: int
    hosts: int
    runs: list[PointRun]
    throughput: Interval | None = Field(description="samples/s, over repeats where there are several")
    speedup: Interval | None = Field(description="throughput over that of the smallest point of its series")
    efficiency: Interval | None
    epoch_s: Interval | None = Field(None, description="seconds of an epoch, all parts")
    time_to_solution_s: Interval | None = None
    epoch_speedup: Interval | None = Field(None, description="by epoch time, over the smallest point of its series")
    labels: list[str] = Field([], description="of the parts of the study that it belongs to")


class SeriesRatio(Record):
    """Throughput of one series over that of another, which differ in one parameter alone: FP16 over FP32, say."""

    parameter: str
    value: Value
    base: Value = Field(description="the value of the series that is divided by")
    series: Parameters = Field(description="what both have in common")
    ranks: int
    hosts: int
    ratio: Interval


class StudyResult(Record):
    """A study as measured so far."""

    schema_: str = Field(alias="schema")
    name: str
    title: str
    directory: str
    scaling: Literal["weak", "strong"] | None
    points: list[StudyPoint]
    published: list[PublishedSeries]
    changed: list[Changed]
    notes: list[str]
    ratios: list[SeriesRatio] = Field(default_factory=list, description="between series, at each size")
    rehearsed: int = Field(0, ge=0, description="measured points whose compute is a timed sleep, on virtual hosts")
    virtual_network: int = Field(0, ge=0, description="those that compute for real, on virtual hosts")


class KeptRun(Record):
    """The metrics of one run, and the digest of its files and of the build of allpull that they belong to."""

    digest: str
    metrics: RunMetrics


class KeptRuns(Record):
    """``metrics.json`` of a study: runs by the name of their directory."""

    schema_: str = Field(alias="schema")
    runs: dict[str, KeptRun]
