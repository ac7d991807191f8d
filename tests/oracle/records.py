"""Write what happened as a run directory, from docs/reference/run-directory.md and its fields alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.simulator import CallLog, History, PassLog, StepLog
from tests.oracle.training import Times, Training

VERSION = "1.5"
BUDGET = 1 << 30
START_S = 1000.0  # of the first step, on the clock of the first host
REALTIME_S = 1_795_000_000.0


@dataclass(frozen=True, kw_only=True)
class Link:
    """TCP between two hosts, per second of the run."""

    sent_bytes: float
    busy_share: float
    rtt_s: float = 100e-6


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is recorded, and how wrong its clocks are."""

    warmup: int = 2
    samples: tuple[int, ...] = ()  # of each rank, per step
    buckets: bool = True  # when each was ready, not only the last gradient
    reductions: bool = True  # all of a step, not only the last one
    queued_s: tuple[float, ...] = ()  # for which the thread of each rank waits for a CPU, per step
    queued_by_step_s: Times | None = None  # the same in each step, (ranks, steps)

    offsets_s: tuple[float, ...] = ()  # by how much the clock of each host is ahead of the first
    drift: tuple[float, ...] = ()  # by how much it is faster
    there_s: float = 50e-6  # how long pings take either way: nobody sees half of the difference
    back_s: float = 50e-6
    device_error_s: tuple[float, ...] = ()  # by how much moments of each rank's device are wrong
    device_bound_s: float = 20e-6  # and may be, as recorded

    stalls: tuple[tuple[int, int, str, float | None], ...] = ()  # rank, step, cause, how long (None: not measured)
    records_stalls: bool = True

    timed_workers: bool = False  # workers of loaders time what they make

    sample_s: float = 1.0  # between the samples of a host
    links: dict[tuple[int, int], Link] | None = None  # TCP from host to host
    backend: str | None = None  # of the process group
    gpu: Callable[[int, float], dict[str, Any]] | None = None  # rank, moment → what its driver says
    usage: Callable[[int, float], dict[str, Any]] | None = None  # rank, moment → what its processes used


Clock = Callable[[float], int]
"""Seconds since the run began → ns of a host's monotonic clock."""


def write(history: History, folder: Path, recording: Recording | None = None) -> Path:
    """One run directory in ``folder``; its path."""
    recording = recording or Recording()
    training = history.training
    name = f"20261120T120000Z_oracle_n{training.ranks}_{training.steps:08x}"
    run = folder / name
    hosts = [f"node{number + 1}" for number in range(training.hosts)]
    document = {
        "schema": _schema("run"),
        "id": name,
        "name": "oracle",
        "kind": "run",
        "created_utc": "2026-11-20T12:00:00Z",
        "ended_utc": "2026-11-20T13:00:00Z",
        "status": "completed",
        "command": ["allpull", "run", "-n", str(training.ranks), "--", "train.py"],
        "spec": {"name": "oracle", "launch": {"ranks": training.ranks, "hosts": training.hosts}},
        "launcher": "slurm",
        "ranks": training.ranks,
        "hosts": hosts,
        "versions": {"allpull": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "exit": {"code": 0},
    }
    _document(run / "run.json", document)
    for number, host in enumerate(hosts):
        clock = _clock(recording, number)
        _document(run / f"hosts/{host}.json", _host(history, number))
        _lines(run / f"counters/{host}.jsonl", _counters(history, recording, number, clock))
    for rank in range(training.ranks):
        clock = _clock(recording, training.host(rank))
        _lines(run / f"steps/rank-{rank:05d}.jsonl", _steps(history, recording, rank, clock))
        _lines(run / f"events/rank-{rank:05d}.jsonl", _events(history, recording, rank, clock))
    return run


def _schema(kind: str) -> str:
    return f"allpull.{kind}/{VERSION}"


def _document(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1), "ascii")


def _lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "ascii")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _clock(recording: Recording, host: int) -> Clock:
    offset = recording.offsets_s[host] if recording.offsets_s else 0.0
    drift = recording.drift[host] if recording.drift else 0.0
    return lambda seconds: _ns(START_S + offset + seconds * (1.0 + drift))


def _boot(host: int) -> str:
    return f"00000000-0000-4000-8000-{host:012d}"


def _pair(clock: Clock, seconds: float) -> dict[str, int]:
    return {"monotonic_ns": clock(seconds), "realtime_ns": _ns(REALTIME_S + seconds)}


def _host(history: History, number: int) -> dict[str, Any]:
    local = history.training.ranks // history.training.hosts
    return {
        "schema": _schema("host"),
        "host": f"node{number + 1}",
        "boot_id": _boot(number),
        "os": "Linux",
        "kernel": "Linux 6.1",
        "cpu": {"model": "CPU", "architecture": "x86_64", "logical": 64, "physical": 64, "usable": 64},
        "gpus": ["NVIDIA H100"] * local if history.devices else [],
        "driver": "550.54" if history.devices else None,
        "memory_bytes": 1 << 38,
        "nics": [{"name": "eth0", "bits_per_s": 10**10}],
        "clock_source": "tsc",
        "load_1min": 0.1,
        "fingerprint": "0123456789abcdef",
    }


# Ranks


def _steps(history: History, recording: Recording, rank: int, clock: Clock) -> Iterable[dict[str, Any]]:
    training = history.training
    host = training.host(rank)
    yield {
        "schema": _schema("steps"),
        "rank": rank,
        "local_rank": sum(training.host(other) == host for other in range(rank)),
        "ranks": training.ranks,
        "host": f"node{host + 1}",
        "boot_id": _boot(host),
        "pid": 4000 + rank,
        "clock": _pair(clock, -1.0),
        "boundary": "optimizer.step",
        "sources": [
            *(["stalls"] if recording.records_stalls else []),
            *("loaders", "networks", "gradients", "optimizers", "collectives"),
        ],
        "warmup_steps": recording.warmup,
        "budget": BUDGET,
    }
    for step, log in enumerate(history.hosts[rank]):
        yield _step(history, recording, rank, step, log, clock)


def _step(history: History, recording: Recording, rank: int, step: int, log: StepLog, clock: Clock) -> dict[str, Any]:
    training = history.training
    per_epoch = training.steps_per_epoch or training.steps
    tags = [
        *(["warmup"] if step < recording.warmup else []),
        *(["first_batch"] if step % per_epoch == 0 else []),
        *(phase for phase in ("evaluation", "checkpoint") if log.phases.get(phase)),
    ]
    record: dict[str, Any] = {
        "step": step,
        "epoch": step // per_epoch,
        "begin_ns": clock(log.begin),
        "end_ns": clock(log.end),
        "samples": recording.samples[rank] if recording.samples else 32,
        **{f"{phase}_ns": _ns(log.phases.get(phase, 0.0)) for phase in ("input", "forward", "backward", "optimizer")},
        **{
            f"{phase}_ns": _ns(log.phases[phase]) if phase in log.phases else None
            for phase in ("copy", "evaluation", "checkpoint")
        },
        "queued_ns": _queued_ns(recording, rank, step),
        "tags": tags,
        "backward_passes": len(training.passes),
    }
    if log.calls:
        record["collectives"] = _calls(history, rank, step, clock)
    if history.devices:
        return record  # what the host knows of collectives is only when it issued them
    reduced = [one for one in log.passes if one.ready]
    if reduced:
        record |= {"arrival_ns": clock(reduced[-1].arrival), "done_ns": clock(reduced[-1].done)}
        if recording.buckets:
            record["ready_ns"] = _ready(reduced[-1], recording, clock)
    if recording.reductions and (len(log.passes) > 1 or any(one.network for one in training.passes)):
        record["reductions"] = [_reduction(training, one, recording, clock) for one in reduced]
    if log.calls:
        record["collective_ns"] = _ns(sum(call.end - call.begin for call in log.calls))
    return record


def _queued_ns(recording: Recording, rank: int, step: int) -> int:
    if recording.queued_by_step_s is not None:
        return _ns(float(recording.queued_by_step_s[rank, step]))
    return _ns(recording.queued_s[rank]) if recording.queued_s else 0


def _ready(one: PassLog, recording: Recording, clock: Clock) -> list[int]:
    """When each bucket was ready, counting the last gradient of all for the last one."""
    return [*(clock(moment) for moment in one.ready[:-1] if recording.buckets), clock(one.arrival)]


def _reduction(training: Training, one: PassLog, recording: Recording, clock: Clock) -> list[int]:
    spent = [_ns(one.spent.get(name, 0.0)) for name in ("input", "copy", "forward", "backward", "optimizer")]
    network = training.passes[one.number].network
    return [network, clock(one.begin), clock(one.done), *spent, *_ready(one, recording, clock)]


def _calls(history: History, rank: int, step: int, clock: Clock) -> list[list[int | None]]:
    """The calls of a step; on a device run the thread never waits for one."""
    log = history.hosts[rank][step]
    first = sum(len(earlier.calls) for earlier in history.hosts[rank][:step])
    entries: list[list[int | None]] = []
    for number, call in enumerate(log.calls):
        begin, end = clock(call.begin), clock(call.end)
        blocked = [None, None] if history.devices else [end - begin, end]
        entries.append([_kinds(history).index(_kind(call)), first + number, begin, *blocked])
    return entries


def _kind(call: CallLog) -> tuple[Any, ...]:
    return (call.call.op, call.call.bytes, call.call.root, call.call.phase)


def _kinds(history: History) -> list[tuple[Any, ...]]:
    logs = history.devices or history.hosts
    return sorted({_kind(call) for log in logs[0][:1] for call in log.calls}, key=str)


def _events(history: History, recording: Recording, rank: int, clock: Clock) -> Iterable[dict[str, Any]]:
    training = history.training
    logs = history.hosts[rank]
    host = training.host(rank)
    yield {"schema": _schema("events"), "rank": rank, "host": f"node{host + 1}", "budget": BUDGET}
    yield {"kind": "clock", **_pair(clock, -1.0)}
    if recording.backend is not None:
        joined = {"backend": recording.backend, "ranks": training.ranks, "unobserved": []}
        yield {"kind": "process_group", **joined, "t_ns": clock(-0.5)}
    for number, (op, size, root, inside) in enumerate(_kinds(history)):
        named = {"op": op, "size_bytes": size, "dtype": "float32", "group": "0", "group_ranks": training.ranks}
        yield {"kind": "collective_kind", "id": number, **named, "root": root, "inside": inside, "t_ns": clock(0.0)}
    cuts = {one.network: one.buckets for one in training.passes if one.reduces}
    for network, buckets in cuts.items():
        sizes = {"sizes_bytes": [bucket.bytes for bucket in buckets], "network": network}
        yield {"kind": "buckets", "step": 0, **sizes, "t_ns": clock(0.0)}
    per_epoch = training.steps_per_epoch or training.steps
    for step, log in enumerate(logs):
        if step % per_epoch == 0:
            yield {"kind": "epoch", "epoch": step // per_epoch, "step": step, "t_ns": clock(log.begin)}
        for phase, begin, end in log.spans:
            if phase in ("evaluation", "checkpoint"):
                moments = {"begin_ns": clock(begin), "end_ns": clock(end)}
                yield {"kind": "span", "name": phase, **moments, "step": step, "epoch": step // per_epoch}
        if history.devices:
            yield _device_step(history, recording, rank, step, clock)
    for owner, step, cause, taken_s in recording.stalls:
        if owner == rank:
            duration = {"duration_ns": None if taken_s is None else _ns(taken_s), "count": 1}
            yield {"kind": "stall", "cause": cause, "step": step, "begin_ns": clock(logs[step].begin), **duration}
    if recording.timed_workers:
        yield from _loaders(training, rank, clock)
    yield {"kind": "clock", **_pair(clock, logs[-1].end)}
    yield {"kind": "end", "steps": len(logs), "left_out": 0, "t_ns": clock(logs[-1].end)}


def _loaders(training: Training, rank: int, clock: Clock) -> Iterable[dict[str, Any]]:
    """What the workers of a rank made in the first half of the run, and in the second."""
    assert training.loader is not None
    workers, half = training.loader.workers, training.steps // 2
    for first, last in ((0, half), (half, training.steps)):
        each = [training.loader.batch_s[rank, first:last][number::workers] for number in range(workers)]
        yield {
            "kind": "loader",
            "loader": 1,
            "first_step": first,
            "step": last,
            "ahead": training.loader.ahead,
            "batches": [len(one) for one in each],
            "making_ns": [_ns(float(one.sum())) for one in each],
            "t_ns": clock(0.0),
        }


def _device_step(history: History, recording: Recording, rank: int, step: int, clock: Clock) -> dict[str, Any]:
    log = history.devices[rank][step]
    wrong = recording.device_error_s[rank] if recording.device_error_s else 0.0

    def moment(seconds: float) -> int:
        return clock(seconds + wrong)

    reduced = [one for one in log.passes if one.ready]
    names = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
    record: dict[str, Any] = {
        "kind": "device_step",
        "step": step,
        "begin_ns": moment(log.begin),
        "end_ns": moment(log.end),
        **{f"{name}_ns": _ns(log.phases.get(name, 0.0)) for name in names},
        "collective_ns": _ns(sum(call.end - call.begin for call in log.calls)),
        "arrival_ns": moment(reduced[-1].arrival) if reduced else None,
        "done_ns": moment(reduced[-1].done) if reduced else None,
        "busy_ns": _busy_ns(log),
        "paced_ns": _ns(log.paced),
        "bound_ns": _ns(recording.device_bound_s),
        "collectives": _device_calls(history, rank, step, moment),
        "t_ns": clock(log.end + 0.001),
    }
    training = history.training
    if reduced and recording.buckets:
        record["ready_ns"] = _ready(reduced[-1], recording, moment)
    if recording.reductions and (len(log.passes) > 1 or any(one.network for one in training.passes)):
        record["reductions"] = [_reduction(training, one, recording, moment) for one in reduced]
    return record


def _device_calls(history: History, rank: int, step: int, moment: Clock) -> list[list[int]]:
    """The calls of a step, where the stream of the device came to them and was held up."""
    logs = history.devices[rank]
    first = sum(len(earlier.calls) for earlier in logs[:step])
    return [
        [_kinds(history).index(_kind(call)), first + number, begin, end - begin, end]
        for number, call in enumerate(logs[step].calls)
        for begin, end in [(moment(call.begin), moment(call.end))]
    ]


def _busy_ns(log: StepLog) -> int | None:
    """Not known where the device may have been idle for a tenth of the step."""
    host_alone = sum(log.phases.get(name, 0.0) for name in ("input", "checkpoint"))
    unknown = log.paced + max(0.0, log.gaps - host_alone)
    if unknown > 0.1 * (log.end - log.begin):
        return None
    copied = sum(log.phases.get(name, 0.0) for name in ("copy", "evaluation"))
    called = sum(call.end - call.begin for call in log.calls)
    return _ns(log.end - log.begin - host_alone - copied - called)


# Hosts


def _counters(history: History, recording: Recording, number: int, clock: Clock) -> Iterable[dict[str, Any]]:
    training = history.training
    yield {
        "schema": _schema("counters"),
        "host": f"node{number + 1}",
        "boot_id": _boot(number),
        "clock": _pair(clock, -1.0),
        "interval_ns": _ns(recording.sample_s),
        "sources": ["oracle"],
    }
    seconds = history.seconds()
    first = _clock(recording, 0)
    for sample in range(int(seconds / recording.sample_s) + 2):
        at = sample * recording.sample_s
        record: dict[str, Any] = {"t_ns": clock(at), "cpu_ns": _ns(at), "idle_ns": _ns(63 * at), "ranks": {}}
        if recording.usage:
            mine = [rank for rank in range(training.ranks) if training.host(rank) == number]
            record["ranks"] = {str(rank): recording.usage(rank, at) for rank in mine}
        if recording.gpu:
            local = [rank for rank in range(training.ranks) if training.host(rank) == number]
            record["gpus"] = {str(index): recording.gpu(rank, at) for index, rank in enumerate(local)}
        if recording.links is not None:
            record["links"] = {
                f"10.0.0.{other + 1}": _link(link, number, at)
                for (one, other), link in recording.links.items()
                if one == number
            }
        if number:
            record |= {"against": "node1", "pings": [_ping(recording, clock, first, at)]}
        yield record


def _link(link: Link, number: int, at: float) -> dict[str, Any]:
    return {
        "local": f"10.0.0.{number + 1}",
        "sent_bytes": round(link.sent_bytes * at),
        "busy_ns": _ns(link.busy_share * at),
        "retransmits": 0,
        "rtt_ns": _ns(link.rtt_s),
    }


def _ping(recording: Recording, here: Clock, there: Clock, at: float) -> list[int]:
    received, back = at + recording.there_s, at + recording.there_s + recording.back_s
    monotonic = [here(at), there(received), there(received), here(back)]
    return [*monotonic, *(_ns(REALTIME_S + moment) for moment in (at, received, received, back))]
