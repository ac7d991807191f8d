"""What happens in a training: ranks, their devices, and one lane of collectives each, on an event queue.

Nothing here knows how allpull replays. A CPU rank does the parts of its phases itself; the host of a device issues
them, and the device does them in order. A collective begins when its last rank has come to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.oracle.events import Moment, Process, Queue, World
from tests.oracle.training import Call, Device, Fetch, Join, Part, Phase, Ready, Training, phases

HOST_PHASES = ("input", "other", "checkpoint")  # the rest runs on the device, where there is one


@dataclass(kw_only=True)
class PassLog:
    """When the gradients of one pass were ready, all of them, and reduced; ``spent``: the step's phases until then."""

    number: int
    begin: float
    ready: list[float] = field(default_factory=list)
    arrival: float | None = None
    done: float | None = None
    spent: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class CallLog:
    """One called collective, on the thread or stream that it blocked."""

    call: Call
    begin: float
    end: float


@dataclass(kw_only=True)
class StepLog:
    """One step of one rank, on its thread or on its device."""

    begin: float
    end: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    passes: list[PassLog] = field(default_factory=list)
    calls: list[CallLog] = field(default_factory=list)
    paced: float = 0.0  # in phases of the device, while the host was still issuing them
    gaps: float = 0.0  # between phases of the device

    def spent(self, phase: str, begin: float, end: float, blocked: float = 0.0) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + end - begin - blocked
        self.spans.append((phase, begin, end))


@dataclass(frozen=True, kw_only=True)
class History:
    """What happened: by rank and step, on hosts and (if there are any) on devices."""

    training: Training
    hosts: list[list[StepLog]]
    devices: list[list[StepLog]]

    def seconds(self, first: int = 0) -> float:
        """From the end of the step before ``first`` to the end of the last one."""
        ends = [[log.end for log in logs] for logs in (self.devices or self.hosts)]
        return max(row[-1] for row in ends) - (max(row[first - 1] for row in ends) if first else 0.0)


# Collectives


class Meeting:
    """One collective of all ranks, from the last that joins; a rooted one from its root."""

    def __init__(self, world: World, ranks: int, seconds: float, root: int | None) -> None:
        self.done = [Moment(world) for _ in range(ranks)]
        self._world, self._seconds, self._root = world, seconds, root
        self._joined: set[int] = set()

    def join(self, rank: int) -> None:
        self._joined.add(rank)
        if self._root is None:
            complete = len(self._joined) == len(self.done)
            released = range(len(self.done)) if complete else ()
        elif rank == self._root:
            released = self._joined
        else:
            released = (rank,) if self._root in self._joined else ()
        for one in released:
            self.done[one].happen(self._seconds)


class Network:
    """One lane per rank: its collectives run one after the other, in the order in which it asked for them."""

    def __init__(self, world: World, training: Training) -> None:
        self._world, self.training = world, training
        self._meetings: list[Meeting] = []
        self._asked = [0] * training.ranks
        self._lanes = [Queue(world) for _ in range(training.ranks)]
        for rank in range(training.ranks):
            world.start(self._lane(rank))

    def ask(self, rank: int, size: int, step: int, root: int | None = None) -> Moment:
        """Queue the next collective of ``rank``; when it is done there."""
        if self._asked[rank] == len(self._meetings):
            seconds = self.training.wire.seconds(size) * float(self.training.wire_factor[0, step])
            self._meetings.append(Meeting(self._world, self.training.ranks, seconds, root))
        meeting = self._meetings[self._asked[rank]]
        self._asked[rank] += 1
        self._lanes[rank].put(meeting)
        return meeting.done[rank]

    def _lane(self, rank: int) -> Process:
        while True:
            meeting = yield from self._lanes[rank].take()
            meeting.join(rank)
            yield meeting.done[rank]


class Batches:
    """What the workers of one rank's loader make, in order."""

    def __init__(self, world: World, training: Training, rank: int) -> None:
        self._made = [Moment(world) for _ in range(training.steps)]
        self._loader, self._rank = training.loader, rank
        self._ordered = [Queue(world) for _ in range(training.loader.workers if training.loader else 0)]
        for queue in self._ordered:
            world.start(self._work(queue))
        for step in range(self._ahead):
            self._order(step)

    def take(self, step: int) -> Process:
        """Wait for the batch of ``step``, and order another."""
        yield self._made[step]
        self._order(step + self._ahead)

    @property
    def _ahead(self) -> int:
        return len(self._ordered) * (self._loader.ahead if self._loader else 0)

    def _order(self, step: int) -> None:
        if step < len(self._made):
            self._ordered[step % len(self._ordered)].put(step)

    def _work(self, queue: Queue) -> Process:
        assert self._loader is not None
        while True:
            step = yield from queue.take()
            yield float(self._loader.batch_s[self._rank, step])
            self._made[step].happen()


class Doer:
    """Does the parts of phases in order, and logs them: the thread of a CPU rank, or the stream of a device."""

    def __init__(self, world: World, network: Network, rank: int) -> None:
        self.world, self.network, self.rank = world, network, rank
        self.batches = Batches(world, network.training, rank)
        self.steps: list[StepLog] = []
        self._last: Moment | None = None

    def begin(self, step: int) -> None:
        self.steps.append(StepLog(begin=self.steps[-1].end if self.steps else self.world.now))

    def enter(self, phase: Phase) -> None:
        if phase.name == "backward":
            self.steps[-1].passes.append(PassLog(number=phase.number or 0, begin=self.world.now))

    def leave(self, phase: Phase, begin: float) -> None:
        log = self.steps[-1]
        log.spent(
            phase.name, begin, self.world.now, sum(call.end - call.begin for call in log.calls if call.begin >= begin)
        )
        if phase.name == "backward":
            log.passes[-1].spent = dict(log.phases)

    def do(self, part: Part) -> Process:
        log, step = self.steps[-1], len(self.steps) - 1
        match part:
            case float():
                yield part
            case Fetch():
                yield from self.batches.take(step)
            case Ready():
                log.passes[-1].ready.append(self.world.now)
                self._last = self.network.ask(self.rank, part.bucket.bytes, step)
            case Join():
                log.passes[-1].arrival = self.world.now
                if self._last is not None:
                    yield self._last
                log.passes[-1].done = self.world.now
            case Call():
                begin = self.world.now
                yield self.network.ask(self.rank, part.bytes, step, part.root)
                log.calls.append(CallLog(call=part, begin=begin, end=self.world.now))


def cpu_rank(training: Training, doer: Doer) -> Process:
    """A rank that computes on its own thread."""
    for step in range(training.steps):
        doer.begin(step)
        for phase in phases(training, doer.rank, step):
            begin = doer.world.now
            doer.enter(phase)
            for part in phase.parts:
                yield from doer.do(part)
            doer.leave(phase, begin)
        doer.steps[-1].end = doer.world.now


@dataclass(frozen=True, kw_only=True)
class StepEnds:
    reached: Moment


@dataclass(kw_only=True)
class Issued:
    """A phase that the host is issuing: its parts follow one by one."""

    phase: Phase
    parts: Queue
    begin: float  # when the host came to it
    buckets: list[float] = field(default_factory=list)  # when the host issued the end of each
    complete: float | None = None  # when its last part was issued


def device_host(training: Training, doer: Doer, stream: Queue, logs: list[StepLog]) -> Process:
    """The thread of a rank with a device: it works on its own phases, and issues the others."""
    device = training.device
    assert device is not None
    ends: list[Moment] = []
    world = doer.world
    for step in range(training.steps):
        log = StepLog(begin=logs[-1].end if logs else world.now)
        logs.append(log)
        if step >= device.ahead:
            yield ends[step - device.ahead]
        for phase in phases(training, doer.rank, step):
            begin = world.now
            if phase.name in HOST_PHASES:
                for part in phase.parts:
                    if isinstance(part, Fetch):
                        yield from doer.batches.take(step)
                    elif isinstance(part, float):
                        yield part
            else:
                yield from _issue(device, phase, stream, log, world)
            log.spent(phase.name, begin, world.now)
        ends.append(Moment(world))
        stream.put(StepEnds(reached=ends[-1]))
        if device.sync:
            yield ends[-1]
        log.end = world.now


def _issue(device: Device, phase: Phase, stream: Queue, log: StepLog, world: World) -> Process:
    issued = Issued(phase=phase, parts=Queue(world), begin=world.now)
    stream.put(issued)
    for part in phase.parts:
        for piece in [part / device.pieces] * device.pieces if isinstance(part, float) else [part]:
            yield piece * device.issue_share if isinstance(piece, float) else 0.0
            if isinstance(piece, Ready):
                issued.buckets.append(world.now)
            if isinstance(piece, Call):
                log.calls.append(CallLog(call=piece, begin=world.now, end=world.now))
            issued.parts.put(piece)
    issued.complete = world.now
    issued.parts.put(None)


def device_stream(training: Training, doer: Doer, stream: Queue, host: list[StepLog]) -> Process:
    """The stream of a device: it does what was issued, in order."""
    world = doer.world
    for step in range(training.steps):
        doer.begin(step)
        idle_from = doer.steps[-1].begin
        while not isinstance(issued := (yield from stream.take()), StepEnds):
            _gap(doer.steps[-1], host[step], idle_from, world.now)
            begin = world.now
            doer.enter(issued.phase)
            while (part := (yield from issued.parts.take())) is not None:
                yield from doer.do(part)
            idle_from = world.now
            doer.leave(issued.phase, begin)
            doer.steps[-1].paced += _paced(doer.steps[-1], issued, begin, world.now)
        doer.steps[-1].end = world.now
        issued.reached.happen()


def _paced(log: StepLog, issued: Issued, begin: float, end: float) -> float:
    """The part of a phase from ``begin`` to ``end`` in which the device may have had no work, without collectives.

    It certainly had some from when the host issued the end of a bucket, or of the phase, until it came there.
    """
    ready = log.passes[-1].ready if issued.buckets else []
    paced = 0.0
    for asked, passed in [*zip(issued.buckets, ready, strict=True), (issued.complete or end, end)]:
        until = min(asked, passed)
        called = sum(max(0.0, min(call.end, until) - call.begin) for call in log.calls if call.begin >= begin)
        paced += max(0.0, until - begin - called)
        begin = passed
    return paced


def _gap(log: StepLog, host: StepLog, begin: float, end: float) -> None:
    """What the host did while the device had nothing to do."""
    log.gaps += end - begin
    for phase, host_begin, host_end in host.spans:
        if phase in HOST_PHASES:
            overlap = min(end, host_end) - max(begin, host_begin)
            if overlap > 0:
                log.phases[phase] = log.phases.get(phase, 0.0) + overlap


def simulate(training: Training) -> History:
    """Let it happen."""
    world = World()
    network = Network(world, training)
    doers = [Doer(world, network, rank) for rank in range(training.ranks)]
    hosts: list[list[StepLog]] = [[] for _ in doers]
    for doer, logs in zip(doers, hosts, strict=True):
        if training.device is None:
            world.start(cpu_rank(training, doer))
        else:
            stream = Queue(world)
            world.start(device_host(training, doer, stream, logs))
            world.start(device_stream(training, doer, stream, logs))
    world.run()
    recorded = [doer.steps for doer in doers]
    if training.device is None:
        return History(training=training, hosts=recorded, devices=[])
    return History(training=training, hosts=hosts, devices=recorded)
