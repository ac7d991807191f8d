"""``events/rank-NNNNN.jsonl``: a header line, then one line per event of one rank."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from allpull.schema.base import Record
from allpull.schema.digest_events import FirstBatches, Replica, ReplicaTensors
from allpull.schema.steps import Collective, Reduction


class EventsHeader(Record):
    """First line of an events file."""

    schema_: str = Field(alias="schema")
    rank: int = Field(ge=0)
    host: str
    budget: int = Field(description="bytes that the file may take; events are thinned before it is spent")


class Span(Record):
    """A long operation: an evaluation, a checkpoint."""

    kind: Literal["span"]
    name: str
    begin_ns: int
    end_ns: int
    step: int = Field(ge=0, description="the step during which it happened")
    epoch: int = Field(ge=0)


class EpochMark(Record):
    """An epoch begins."""

    kind: Literal["epoch"]
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    t_ns: int
    asked_ns: int | None = Field(
        None, description="when an unedited program asked its loader for the batches of the epoch"
    )


class Metric(Record):
    """A quantity of the training itself, such as ``test_top1``; null where it could not be computed."""

    kind: Literal["metric"]
    name: str
    value: float | None
    step: int = Field(ge=0)
    epoch: int = Field(ge=0)
    t_ns: int


class ClockPair(Record):
    """The same moment on the monotonic and the real-time clock."""

    kind: Literal["clock"]
    monotonic_ns: int
    realtime_ns: int


class Raised(Record):
    """The exception that ended this rank."""

    kind: Literal["exception"]
    type: str
    message: str
    hint: str | None = Field(None, description="what to do about it, where the exception says so")
    t_ns: int


class Thinned(Record):
    """Records were left out from here on, to stay within the budget."""

    kind: Literal["thinned"]
    file: Literal["steps", "events"]
    keep_one_in: int = Field(ge=2)
    t_ns: int


class SwitchedOff(Record):
    """Observation failed (for example, a full disk) and stopped; the training continued."""

    kind: Literal["switched_off"]
    reason: str
    part: str | None = Field(None, description="the part of observation that stopped; None: all of it")
    t_ns: int


class Remark(Record):
    """A message of the program to its user, such as a setting that could not be applied."""

    kind: Literal["remark"]
    text: str
    t_ns: int


class Restarted(Record):
    """This rank continues after a failed attempt; its first step is the first that is repeated."""

    kind: Literal["restarted"]
    attempt: int = Field(ge=1)
    steps_before: int = Field(ge=0, description="steps that the previous attempt had recorded")
    t_ns: int


class CollectiveKind(Record):
    """The kind of the collectives with one ``id`` in a rank's step records; ids differ between ranks."""

    kind: Literal["collective_kind"]
    id: int = Field(ge=0)
    op: str = Field(description="torch's name, such as all_reduce, broadcast or barrier")
    size_bytes: int = Field(ge=0, description="the larger of input and output")
    dtype: str | None = None
    group: str = Field(description="name of the process group; equal on all its ranks")
    group_ranks: int = Field(ge=1)
    root: int | None = Field(None, ge=0, description="rank in the job of the root of a broadcast, reduce and so on")
    inside: str | None = Field(None, description="phase in which it was called, such as forward or evaluation")
    t_ns: int


class ProcessGroup(Record):
    """This rank joined the process group of its job; written again where ``unobserved`` grew."""

    kind: Literal["process_group"]
    backend: str | None = None
    ranks: int = Field(ge=1, description="world size")
    unobserved: list[str] = Field(
        default_factory=list,
        description="what the program may exchange gradients by, and is not recorded: send and receive, a package",
    )
    t_ns: int


class Buckets(Record):
    """How DDP divides the gradients into buckets, from a step on; sizes in the order of reduction."""

    kind: Literal["buckets"]
    step: int = Field(ge=0)
    sizes_bytes: list[int]
    gradients_bytes: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, description="of each gradient, which no bucket divides, in this order; empty: not known"
    )
    network: int = Field(0, ge=0, description="which network of the rank, as in the reductions of its steps")
    t_ns: int


class DataParallel(Record):
    """The settings of a network's DistributedDataParallel; written again as more of its backward passes are known."""

    kind: Literal["data_parallel"]
    step: int = Field(ge=0)
    network: int = Field(ge=0, description="as in the reductions of steps")
    find_unused_parameters: bool
    broadcast_buffers: bool = Field(description="buffers are sent from one rank to the others before forward")
    static_graph: bool = False
    group_ranks: int | None = Field(None, ge=1, description="ranks that average its gradients")
    buffers_bytes: int = Field(ge=0, description="size of the buffers that DDP keeps equal, such as running means")
    unused_bytes: int | None = Field(
        None, ge=0, description="parameters without a gradient, the most of all checked passes; None: not looked for"
    )
    checked_passes: int = Field(0, ge=0, description="backward passes whose unused parameters DDP's logger has shown")
    hook: str | None = Field(
        None, max_length=200, description="the Python function that reduces each bucket in DDP's place"
    )
    hook_calls: int | None = Field(None, ge=0, description="how often it was called, up to this step")
    hook_ns: int | None = Field(
        None,
        ge=0,
        description="time inside these calls, part of backward, without the callbacks of the futures that it returns",
    )
    t_ns: int


class NcclLog(Record):
    """Lines about networks, interfaces and channels in the log of NCCL in this rank, each way once."""

    kind: Literal["nccl_log"]
    lines: list[Annotated[str, Field(max_length=1000)]] = Field(max_length=1000)
    t_ns: int


class Locality(Record):
    """How near the CPUs of this rank are to its accelerator, when it began to use it."""

    kind: Literal["locality"]
    name: str | None = Field(None, max_length=200, description="name of the accelerator")
    bus_id: str = Field(max_length=32, description="its PCI address")
    node: int = Field(ge=0, description="its memory node")
    cpus: str = Field(max_length=10_000, description="CPUs that the rank may run on, such as 0-3,8")
    near_cpus: str = Field(max_length=10_000, description="CPUs of the accelerator's memory node")
    distance: int = Field(ge=0, description="of the nearest node of these CPUs: 10 is the same one (ACPI SLIT)")
    t_ns: int


class InputShapes(Record):
    """How many shapes of input a network with convolutions has met; written again as there are more."""

    kind: Literal["input_shapes"]
    step: int = Field(ge=0)
    shapes: int = Field(ge=0, description="different ones since the first event, counted up to 1024")
    benchmark: bool = Field(description="torch.backends.cudnn.benchmark: each new shape tries all algorithms")
    t_ns: int


class TraceWindow(Record):
    """A profiler window: the raw trace is a file of the run directory."""

    kind: Literal["trace"]
    file: str
    first_step: int = Field(ge=0)
    steps: int = Field(ge=1)
    begin_ns: int
    end_ns: int


class DeviceStep(Record):
    """One step on the accelerator, of the stream that the program computes on; written when the stream has passed it.

    All moments are converted from the device's clock to the monotonic clock of its host, wrong by ``bound_ns`` at most;
    that error is the same for all of a step, so differences within a step are the device's own. The host runs ahead, so
    a step begins and ends later here than in its ``StepRecord``, from the end of the step before to its own. Forward,
    backward, optimizer and collectives are what the stream spent in them, waiting for the host included; input, copies,
    evaluations and checkpoints are the part of the host's time in which the stream had nothing to do. These do not
    overlap. Where a step has no such record, only its host's times are known.
    """

    kind: Literal["device_step"]
    step: int = Field(ge=0)
    begin_ns: int | None = Field(None, description="the end of the previous step, if known")
    end_ns: int | None = None
    input_ns: int | None = Field(None, ge=0, description="the part of the fetch that the device waited for")
    copy_ns: int | None = Field(None, ge=0, description="the part of copies from the host that it waited for")
    forward_ns: int | None = Field(None, ge=0, description="from its begin to its end, as the stream passed them")
    backward_ns: int | None = Field(None, ge=0, description="including the reduction of gradients")
    optimizer_ns: int | None = Field(None, ge=0)
    evaluation_ns: int | None = Field(None, ge=0, description="the part of evaluation between phases of the device")
    checkpoint_ns: int | None = Field(None, ge=0, description="the part of saving that the device waited for")
    collective_ns: int | None = Field(None, ge=0, description="in collectives that the program called, on this stream")
    arrival_ns: int | None = Field(
        None, description="the stream had computed the last gradient: arrival at the last reduction of the step"
    )
    done_ns: int | None = Field(
        None, description="the stream passed the end of that backward pass, after its reduction"
    )
    busy_ns: int | None = Field(
        None,
        ge=0,
        description="upper bound on the time that the compute stream had work, called collectives and the part of"
        " other phases above left out; at most a tenth of the step too high. Absent: that is not known, as in each step"
        " that the host paces",
    )
    exchange_ns: int | None = Field(
        None,
        ge=0,
        description="the part in which collectives ran and nothing else did, beside what counts as waiting for them;"
        " from traces only",
    )
    paced_ns: int | None = Field(
        None,
        ge=0,
        description="the part of forward, backward and optimizer that passed while the host was still issuing it: the"
        " device may have been idle for any part of this, and was not in the other part of these phases",
    )
    bound_ns: int | None = Field(None, ge=0, description="how wrong the moments may be on the host's clock, either way")
    collectives: list[Collective] | None = Field(
        None,
        description="calls of the step record with the moments when this stream came to the call, and passed its end;"
        " it was blocked for blocked_ns before that",
    )
    ready_ns: list[int] | None = Field(
        None,
        description="for each bucket of the last reduction, in the order of reduction, when the stream had computed the"
        " last gradient of it and of all earlier ones; the last is arrival_ns. Absent: buckets are not distinguished",
    )
    reductions: list[Reduction] | None = Field(
        None,
        description="every reduction of the step as in a step record, with moments and times of this device; absent"
        " where there was at most one, of network 0, in the only backward pass, and where they are not known",
    )
    autocast: str | None = Field(None, description="dtype of autocast where the network was called, such as bfloat16")
    t_ns: int


class Boundary(Record):
    """Another end of steps than the header's: the program updates parameters without an observed optimizer.

    ``parameter.update``: the program went on after a parameter had changed; ``gradient.clear``, ``zero_grad``: after
    its gradients were cleared; ``loader.next``, ``backward``: neither showed, so that each batch or backward pass that
    followed one is a step.
    """

    kind: Literal["boundary"]
    boundary: str = Field(description="what ends steps from here on")
    step: int = Field(ge=0)
    t_ns: int


class Stall(Record):
    """What held up the whole rank in a step, for 1 ms and more each time; those with one cause are added up."""

    kind: Literal["stall"]
    cause: str = Field(
        description="garbage_collection (Python's), compilation (by torch.compile), allocator_retries (CUDA's caching"
        " allocator freed what it had cached, and tried again)"
    )
    step: int = Field(ge=0, description="the step during which it began, on the host")
    begin_ns: int = Field(description="when the first of them began; of allocator_retries, when the step did")
    duration_ns: int | None = Field(None, ge=0, description="of all of them together; null where it is not measured")
    count: int = Field(ge=1)


class LoaderWork(Record):
    """What the workers of a loader that the program trains on made since its last event, before ``step``.

    Only workers that are forked are timed: what hands a batch over, from one process to another, is not in it.
    """

    kind: Literal["loader"]
    loader: int = Field(ge=1, description="the iterator, counted in this rank; a new one for each epoch is usual")
    first_step: int = Field(ge=0, description="the step during which the loader began, or that of its last event")
    step: int = Field(ge=0, description="the step that runs now")
    ahead: int | None = Field(None, ge=0, description="batches that each worker makes ahead: prefetch_factor")
    batches: list[int] = Field(min_length=1, max_length=10_000, description="made by each worker")
    making_ns: list[int] = Field(min_length=1, max_length=10_000, description="that took each worker")
    t_ns: int


class Watching(Record):
    """Observation was switched on or off by the user, from this step on."""

    kind: Literal["watching"]
    on: bool
    step: int = Field(ge=0)
    t_ns: int


class Rest(Record):
    """Collectives after the last step, such as those of the last evaluation; ``step`` would be the next."""

    kind: Literal["rest"]
    step: int = Field(ge=0)
    collectives: list[Collective] = Field(description="as in a step record")
    t_ns: int


class End(Record):
    """The rank ended by itself; a rank that was killed has none."""

    kind: Literal["end"]
    steps: int = Field(ge=0)
    left_out: int = Field(0, ge=0, description="records that the budget or a failure left out")
    cpus: str | None = Field(None, description="CPUs that the rank might run on at its end, such as 0-3,8")
    t_ns: int


Event = Annotated[
    Span
    | EpochMark
    | Metric
    | ClockPair
    | Raised
    | Thinned
    | SwitchedOff
    | Remark
    | Restarted
    | CollectiveKind
    | ProcessGroup
    | Buckets
    | Boundary
    | DataParallel
    | NcclLog
    | Locality
    | InputShapes
    | FirstBatches
    | ReplicaTensors
    | Replica
    | TraceWindow
    | DeviceStep
    | Stall
    | LoaderWork
    | Watching
    | Rest
    | End,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
