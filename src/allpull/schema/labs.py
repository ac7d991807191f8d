"""Results of `allpull lab`: what a lab did, as its page shows it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.explained import Finding, TimelinePart
from allpull.schema.interval import Interval
from allpull.schema.replicas import ReplicaDifference

Share = Literal["strong", "weak"]
Without = Literal["broadcast", "average"]
ProgramFault = Literal["start", "own gradient", "sum", "same samples", "no update"]
Algorithm = Literal["ring", "tree", "naive"]
StragglerFault = Literal["slow-rank", "slow-loader", "thin-link"]
RateRule = Literal["fixed", "scaled", "warmup"]


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
        description="of its own part of the batch by slope and offset, before each shown update but the last; empty "
        "for a program that does not write them"
    )


class ProgramCheck(Record):
    """Whether a program of the reader's own walks, on every rank, the path of one rank with the whole batch."""

    program: str
    update: int | None = Field(None, description="after which `rank` is elsewhere, 0: before the first; None: never")
    rank: int | None = None
    fault: ProgramFault | None = Field(
        None,
        description="what that rank did instead: began elsewhere, applied its own gradient or the sum of all, computed "
        "on rank 0's samples, did not move; None: nothing is wrong, or it is none of these",
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
    differences: list[ReplicaDifference] = Field(
        default=[], description="the same with the first update and tensor that differ"
    )
    program: ProgramCheck | None = Field(None, description="of a program of the reader's own; None: the lab's ran")


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
    least_seconds: float | None = Field(default=None, description="the fastest repetition")
    most_seconds: float | None = Field(default=None, description="the slowest repetition")


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


class StragglerRun(Record):
    """One rehearsal: what its timeline and its steps are."""

    run: str
    step_s: float = Field(description="mean over the explained steps")
    timeline: list[TimelinePart] = Field(description="of a few ordinary steps")


class StragglerCase(Record):
    """One planted fault: the run with it, what `explain` says of that run, and the run without it."""

    fault: StragglerFault
    rank: int = Field(description="at fault; of a thin link, the one on its host")
    host: str | None = Field(description="None: all ranks are on this machine")
    faulty: StragglerRun
    mended: StragglerRun = Field(description="the same cluster without the fault")
    findings: list[Finding] = Field(description="of `explain` on the faulty run, as it gives them")
    named: bool = Field(description="whether one of them names the planted fault and its rank")
    promised: Interval | None = Field(description="the speed-up ratio that this finding predicts; None: not named")
    came: Interval = Field(description="measured throughput, mended ÷ faulty; bounds from the variation within runs")


class StragglerResult(Record):
    """Result of `allpull lab straggler`."""

    schema_: str = Field(alias="schema")
    ranks: int
    seed: int = Field(description="of the ranks at fault, and of the order of the cases")
    steps: int = Field(description="of each run")
    on_hosts: bool = Field(description="on virtual hosts with shaped links; otherwise as processes of one machine")
    left_out: str | None = Field(description="why there is no thin link; None: there is one, or it was not requested")
    cases: list[StragglerCase]


class LanePart(Record):
    """One phase on the compute lane, in s after the begin of the step."""

    part: str
    begin_s: float
    end_s: float


class LaneBucket(Record):
    """One bucket of gradients, in s after the begin of the step."""

    size_bytes: int = Field(description="sent as one; a shrunk cluster sends that much less than the network has")
    ready_s: float = Field(description="when the last rank had all its gradients, as recorded")
    begin_s: float = Field(description="when it began to move: buckets follow each other on one lane")
    end_s: float = Field(description="of the last one as recorded; of the others inferred from all steps")


class OverlapRun(Record):
    """One training with one bucket size; times are means over its explained steps."""

    bucket_mib: float = Field(description="DDP's bucket_cap_mb")
    run: str
    step_s: float
    replayed_s: float = Field(description="a step of the run with `base_mib`, replayed with this size")
    exchange_s: float = Field(description="all buckets of a step on the network")
    hidden_s: float = Field(description="of that, while backward ran")
    exposed_s: float = Field(description="of that, after the last gradient was ready")
    compute: list[LanePart] = Field(description="of one ordinary step, of the rank whose last gradient came last")
    buckets: list[LaneBucket] = Field(description="of the same step")


class OverlapResult(Record):
    """Result of `allpull lab overlap`."""

    schema_: str = Field(alias="schema")
    ranks: int
    steps: int = Field(description="of each run")
    link: str | None = Field(description="of each virtual host, before shrinking; None: within this machine")
    unshaped: str | None = Field(description="why there are no virtual hosts; None: there are")
    shrink: float = Field(description="bytes and rates are divided by this, times are not")
    base_mib: float = Field(description="the size whose run is replayed with the others")
    runs: list[OverlapRun] = Field(description="by size")


class CurvePoint(Record):
    """The accuracy on the test images after ``epochs``."""

    epochs: float
    accuracy: float


class BatchTraining(Record):
    """One training to the target, or to the last epoch that the lab allows."""

    ranks: int
    global_batch: int
    rule: RateRule
    seed: int
    reached: bool = Field(description="false: seconds and epochs are those trained without reaching the target")
    epochs: float = Field(description="samples trained ÷ samples of the data set, at the last evaluation")
    seconds: float = Field(description="of training, without start-up and evaluations")
    samples_per_s: float
    curve: list[CurvePoint] = Field(description="every evaluation, about two per epoch")


class OverSeeds(Record):
    """Median and range of one number over the seeds of a point; a training that did not reach the target is above all.

    ``median`` and ``high`` are None where the trainings that did not reach it make them unknown.
    """

    median: float | None
    low: float | None
    high: float | None


class BatchPoint(Record):
    """All trainings of one global batch, rule and number of ranks."""

    ranks: int
    global_batch: int
    rule: RateRule
    rate: float = Field(description="after any warm-up")
    trainings: int
    reached: int = Field(description="trainings that reached the target")
    samples_per_s: OverSeeds
    epochs: OverSeeds
    seconds: OverSeeds
    spent_epochs: float = Field(description="the most that a training of this point took, in vain or not")
    spent_seconds: float


class EpochsFit(Record):
    """E(B) = E0 (1 + B ÷ Bc) through epochs to a target at several global batches B."""

    first_epochs: float = Field(description="E0")
    critical_batch: float | None = Field(description="Bc; None: epochs do not grow with the batch")
    smallest_batch: int
    largest_batch: int


class BatchForecast(Record):
    """Time to the target on ranks that were not measured: measured epochs, samples/s as if scaling were perfect."""

    ranks: int
    global_batch: int
    seconds: float
    seconds_if_epochs_stayed: float = Field(description="with the epochs of the smallest batch")


class PublishedEpochs(Record):
    """Published epochs to a target at one global batch: the mean and range of several trainings."""

    global_batch: int
    trainings: int
    mean: float
    low: float
    high: float


class PublishedConvergence(Record):
    """Published epochs of one recipe."""

    source: str
    edition: str
    recipe: str
    points: list[PublishedEpochs]
    fit: EpochsFit


class BatchResult(Record):
    """Result of `allpull lab batch`."""

    schema_: str = Field(alias="schema")
    target: float = Field(description="accuracy on the test images, 0 to 1")
    max_epochs: int
    ranks: int = Field(description="the most; with warm-up also 1, 2, 4 … ranks are trained")
    batches: list[int] = Field(description="global batches, smallest first")
    seeds: int
    rate: float = Field(description="learning rate at the smallest batch")
    warmup_epochs: float
    samples: int
    test_samples: int
    seconds: float = Field(description="that the whole lab took")
    points: list[BatchPoint]
    trainings: list[BatchTraining]
    fit: EpochsFit | None = Field(
        description="of the warm-up, over the batches at which every training reached the target; None: fewer than two"
    )
    forecast: list[BatchForecast] = Field(description="with warm-up, as many samples per rank as the smallest batch")
    published: PublishedConvergence
