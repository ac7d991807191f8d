"""Results of the analysis: the JSON that others build on (DESIGN §5). Names carry SI units."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.epochs import AccuracyTime, EpochSpeedup, EpochTime
from allpull.schema.host import HostRecord
from allpull.schema.idle import AcceleratorIdle
from allpull.schema.interval import Interval as Interval  # noqa: PLC0414  most results have one: both are imported here
from allpull.schema.pop import PopEfficiencies
from allpull.schema.precision import PrecisionRatio
from allpull.schema.reading import Io
from allpull.schema.replicas import Replicas
from allpull.schema.run import Exit, GitState

Scaling = Literal["weak", "strong", "mixed"]


class StepTime(Record):
    """Step times over the steady window, in seconds."""

    median: float
    p95: float


class Steady(Record):
    """The steps on which rates are based."""

    used: int = Field(ge=0)
    left_out: dict[str, int] = Field(description="reason → steps of the job; each step counts under its first reason")


class Overhead(Record):
    """What recording cost the ranks, by their own measurement."""

    share: float | None


class CollectiveUse(Record):
    """Collectives of one operation and size that the program called, or that occur inside forward, in the steady steps.

    Those of DDP's backward are excluded (see `buckets`), except where an import counts them as calls. Times are medians
    over steps of the mean over ranks and over the calls of a step; rates are medians over calls.
    """

    op: str = Field(description="torch's name, such as all_reduce, broadcast or barrier")
    size_bytes: int = Field(ge=0, description="the larger of input and output, maximum over ranks")
    dtype: str | None
    group: str
    group_ranks: int
    inside: str | None = Field(description="phase in which it was called; None: between phases")
    steady: bool = Field(description="False: called only outside steady steps, so all steps are counted")
    calls: int = Field(ge=0, description="of all ranks")
    unmatched: int = Field(ge=0, description="calls whose counterparts on other ranks were not found")
    calls_per_step: float = Field(ge=0, description="by one rank of its group, in the steps counted")
    blocked_s_per_step: float = Field(ge=0, description="mean over the ranks of the job")
    wait_s: float | None = Field(description="blocked before the last rank arrived")
    transfer_s: float | None = Field(description="blocked after that")
    algbw_bytes_per_s: float | None = Field(description="size ÷ time from the last arrival to the median end")
    busbw_bytes_per_s: float | None = Field(description="what each link carries: algbw · 2(N−1)/N for an all-reduce")


class Pause(Record):
    """Evaluations or checkpoints of the whole run: on which ranks, and how long the others waited."""

    name: Literal["evaluation", "checkpoint"]
    times: int = Field(ge=0, description="on the rank that performed it most often")
    fewest: int | None = Field(None, ge=0, description="on the one of `ranks` that performed it least often")
    ranks: list[int] = Field(description="that performed it; empty: all of them")
    seconds: float = Field(ge=0, description="on the rank that spent most")
    shortest_s: float | None = Field(None, ge=0, description="on the one of `ranks` that spent least")
    s_per_epoch: float | None = Field(description="the same, divided by the epochs recorded")
    waited_s: float | None = Field(
        description="blocked in collectives meanwhile, mean over the ranks that did not perform it"
    )
    waited_in: str | None = Field(description="the collective with most of that time")


class BucketTime(Record):
    """One bucket of gradients, from profiler windows: medians over windows and ranks, in s after the step began."""

    bucket: int = Field(ge=0, description="in the order in which they are reduced")
    size_bytes: int | None
    seen: int = Field(ge=0, description="rank-steps of profiler windows")
    ready_s: float | None = Field(description="its gradients were all ready, and its all-reduce was queued")
    start_s: float | None
    end_s: float | None


class Observed(Record):
    """What was recorded, and from which sources."""

    boundary: str | None = Field(description="what delimits a step")
    sources: list[str] = Field(description="where the times come from")
    steps: int = Field(ge=0, description="of the job, all that were recorded")
    steps_made: int | None = Field(None, ge=0, description="by the last attempt, recorded or not; None: not known")
    epochs: int = Field(ge=0, description="that began; 0: the program has none")
    samples: int | None = Field(description="of all steps and ranks that were recorded; None: not known for all")
    skipped_steps: int = Field(ge=0, description="in which a gradient was not finite and the optimizer did nothing")
    backward_passes: float | None = Field(description="of a steady step; above 1 where gradients accumulate")
    stopped_parts: list[str] = Field(description="parts of the observation that stopped with an error")
    energy_j_per_epoch: float | None = Field(description="of all accelerators, mean over the epochs measured")
    named: dict[str, float] = Field(
        default_factory=dict, description="seconds per steady step of phases that the program named, mean over ranks"
    )


class RunMetrics(Record):
    """One run, as `allpull show` prints it. None: not measured."""

    run: str
    name: str
    directory: str
    status: str
    ranks: int
    hosts: int
    global_batch: int | None
    samples_per_rank_step: float | None = Field(description="mean over the steady window")
    steady: Steady
    throughput: Interval | None = Field(description="samples/s of the whole job")
    step_s: StepTime | None
    phases: dict[str, float | None] = Field(description="seconds per steady step, mean over ranks")
    closure_error: float | None = Field(description="|sum of phases − step time| ÷ step time, largest of all ranks")
    io: Io
    overhead: Overhead
    accuracy: float | None = Field(description="top-1 of the last evaluation, as a fraction")
    accuracy_top5: float | None
    speedup: float | None = Field(description="throughput over that of the reference run")
    speedup_interval: Interval | None
    efficiency: float | None = Field(description="speed-up over the ideal one, ranks ÷ reference ranks")
    efficiency_interval: Interval | None
    gaps: list[str] = Field(description="what is missing or damaged")
    clock_error_s: float | None = Field(
        None,
        ge=0,
        description="maximum error of the time between two ranks; 0: one clock; None: clocks are not comparable",
    )
    observed: Observed | None = None
    collectives: list[CollectiveUse] | None = Field(None, description="most costly first; None: not recorded")
    pauses: list[Pause] = Field(default_factory=list)
    buckets: list[BucketTime] | None = Field(None, description="None: no profiler window was read")
    pop: PopEfficiencies | None = Field(None, description="POP efficiencies; None: pop_missing has the reason")
    pop_missing: str | None = Field(None, description="why there are no POP efficiencies")
    idle: AcceleratorIdle | None = Field(None, description="share of an epoch without work on the accelerators")
    precision: str | None = Field(None, description="of the arithmetic of a step, such as bf16; None: not recorded")
    reference: str | None = Field(None, description="run id that speedup, efficiency and epoch_speedup refer to")
    epoch_s: EpochTime | None = Field(None, description="seconds of an epoch; None: epoch_notes say why")
    time_to_solution_s: float | None = Field(
        None, description="from the begin of the first epoch to the end of the last one; None: epoch_notes say why"
    )
    time_to_accuracy: AccuracyTime | None = Field(None, description="None: no accuracy was stated")
    training_samples_per_s: float | None = Field(
        None, description="samples of the epochs of `epoch_s` ÷ their seconds of training"
    )
    overall_samples_per_s: float | None = Field(
        None, description="samples of the epochs of `epoch_s` ÷ all their seconds, evaluation and checkpoint included"
    )
    epoch_speedup: EpochSpeedup | None = None
    replicas: Replicas | None = Field(None, description="None: no digests were requested")
    epoch_notes: list[str] = Field(default_factory=list, description="which epochs do not count, and what is not known")


class ProgramRuns(Record):
    """The runs of one program among several, which are compared with each other alone."""

    program: str = Field(description="name of the script or recipe, and what tells it from its namesakes")
    runs: list[str] = Field(description="run ids")
    reference: str | None
    scaling: Scaling | None
    notes: list[str]


class ShowResult(Record):
    """One or more runs side by side; the one with fewest ranks is the reference.

    Speed-up exists only among runs of one program: of the same script with the same contents and options, or of the
    same recipe. Where the runs are of several, each has a reference of its own in ``programs``.
    """

    schema_: str = Field(alias="schema")
    runs: list[RunMetrics]
    reference: str | None = Field(
        description="run id of the reference; None for a single run and for several programs. Of several precisions,"
        " that of the most exact one: each run names its own"
    )
    scaling: Scaling | None = Field(description="weak: same samples per rank; strong: same global batch")
    notes: list[str]
    programs: list[ProgramRuns] = Field(default_factory=list, description="empty where all runs are of one program")
    precisions: list[PrecisionRatio] = Field(
        default_factory=list, description="each precision over the most exact one at the same ranks"
    )
    without_steps: list[str] = Field(
        default_factory=list, description="run ids of probes and of jobs that made no step, beside runs that did"
    )
    damaged: list[str] = Field(
        default_factory=list, description="runs of a folder that could not be read, each with the reason"
    )


class ListedRun(Record):
    """One run of a folder, in a line."""

    run: str
    name: str
    directory: str
    program: str = Field(description="script, recipe, or kind of probe")
    kind: str
    status: str
    is_over: bool = Field(
        False, description="whether a run that has not ended by its status was killed together with what would close it"
    )
    ranks: int
    created_utc: str
    seconds: float | None = Field(description="from the creation of the run to its end; None: it has not ended")
    silent_s: float | None = Field(
        None, description="since anything was written to a run that has not ended; None: it has ended"
    )
    throughput: Interval | None = Field(description="samples/s of the whole job; None: not measured")
    finding: str | None = Field(description="the first finding of its last explanation; None: not explained")


class ListResult(Record):
    """The runs of folders, the latest first."""

    schema_: str = Field(alias="schema")
    runs: list[ListedRun]
    damaged: list[str] = Field(description="runs that could not be read, each with the reason")


class Curve(Record):
    """A quantity over the training, such as ``train_loss`` or ``test_top1`` (fraction)."""

    name: str
    epochs: list[float] = Field(description="epochs done when each value was known")
    values: list[float | None]


class UsageSeries(Record):
    """One quantity over the time of a run; each value holds until its moment, since the moment before."""

    name: Literal[
        "step",
        "slowest step",
        "cpus",
        "memory",
        "read",
        "storage read",
        "reads",
        "network sent",
        "gpu busy",
        "gpu memory",
    ]
    unit: Literal["s", "CPUs", "bytes", "bytes/s", "reads/s", "share"]
    times_s: list[float] = Field(description="after the first step began")
    values: list[float | None]


class RunDetail(Record):
    """What a report shows about one run beyond its metrics."""

    metrics: RunMetrics
    created_utc: str
    command: list[str]
    seed: int | None
    threads_per_rank: int | None
    versions: dict[str, str | None]
    git: GitState | None
    environment: dict[str, str]
    hosts: list[HostRecord]
    step_times_s: list[float] = Field(description="steady step times, thinned evenly to at most 2,000")
    curves: list[Curve]
    exit: Exit | None
    other_cpu_share: float | None = Field(
        None,
        ge=0,
        description="share of the CPUs of the busiest host that other programs kept busy in the steady steps",
    )
    linked_files: list[str] = Field(
        default_factory=list, description="paths in the run directory of files that other tools open, such as traces"
    )


class CollectiveTime(Record):
    """One size of an all-reduce. The time of a repetition is the maximum over ranks; rates are those of its median."""

    size_bytes: int
    repetitions: int
    time_s: float
    time_p95_s: float
    algbw_bytes_per_s: float = Field(description="size ÷ time")
    busbw_bytes_per_s: float = Field(description="algbw · 2(N−1)/N: the rate of each link, independent of N")


class RingFit(Record):
    """time = 2(N−1) · latency + 2(N−1)/N · size ÷ link, fitted to the medians of all sizes."""

    latency_s: Interval
    link_bytes_per_s: Interval
    worst_error: float = Field(description="largest |fit − measured| ÷ measured over the sizes")


class AllreduceResult(Record):
    """The result of `allpull probe allreduce`."""

    schema_: str = Field(alias="schema")
    run: str
    ranks: int
    hosts: int
    backend: str | None = Field(description="back-end: gloo or nccl; None: an older probe")
    device: str | None = Field(description="device of the data: cpu or cuda")
    results: list[CollectiveTime]
    fit: RingFit | None = Field(description="None: one size or one rank cannot separate latency from bandwidth")


class ClockOffset(Record):
    """The clock of one host against that of host 0, at the end of the probe. A bound is an error never exceeded."""

    host: str
    against: str
    clock: Literal["monotonic", "realtime"]
    offset_s: float = Field(description="this host's clock minus host 0's")
    offset_bound_s: float
    drift_ppm: float | None = Field(
        description="parts per million by which it runs faster; None: the probe was too short"
    )
    drift_bound_ppm: float | None
    round_trip_s: float = Field(description="the shortest")


class ClockResult(Record):
    """The result of `allpull probe clock`."""

    schema_: str = Field(alias="schema")
    run: str
    hosts: int
    offsets: list[ClockOffset]


class Trouble(Record):
    """A problem of a running job, and the rank that has it."""

    kind: Literal["dead", "hung", "slow"]
    rank: int
    host: str
    pid: int
    words: str
    stack: list[str] = Field(default_factory=list, description="where the rank is, outermost first, by py-spy")


class RankWatched(Record):
    """One rank of a running job."""

    rank: int
    host: str
    pid: int
    alive: bool | None = Field(description="None: it runs on another machine")
    ended: bool
    steps_done: int
    step_s: float | None = Field(description="median of the last steady steps")
    own_s: float | None = Field(description="the same without waiting for other ranks")
    phase: str | None
    operation: str | None = Field(description="the collective that it is executing")
    phase_for_s: float | None
    phases: dict[str, float] = Field(default_factory=dict, description="seconds per step, over its last steps")
    late_s: float | None = Field(None, description="seconds per step by which its own work exceeds the fastest rank's")


class WatchResult(Record):
    """One snapshot of `allpull watch`."""

    schema_: str = Field(alias="schema")
    run: str
    status: str
    is_over: bool = Field(
        False, description="whether a job that has not ended by its status was killed together with what would close it"
    )
    ranks_expected: int
    steps_done: int = Field(description="by all ranks")
    steps_total: int | None = Field(description="None: the program does not state it")
    epoch: int | None
    left_s: float | None
    step_s: float | None
    samples_per_s: float | None = Field(description="of the whole job, over the last steps")
    phases: dict[str, float] = Field(description="seconds per step, over the last steps")
    ranks: list[RankWatched]
    troubles: list[Trouble]
