"""Make run directories of any size in the format of a recorded run, for measurements of what reads them.

Every rank does the same work with jitter; one is late in forward, the network takes its time, an evaluation and a
checkpoint end each epoch. Clocks of hosts differ and are compared by pings, as sidecars do. What a line holds was taken
from recorded rehearsals: nulls, moments of buckets, calls of collectives, tags of the first steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.rundir import layout
from allpull.schema.base import tag

MS = 1_000_000
BEGIN_NS = 1_172_000_000_000
REALTIME_NS = 1_795_326_283_000_000_000
STEP_NS, FORWARD_NS, BACKWARD_NS = 95 * MS, 30 * MS, 50 * MS
EVALUATION_NS, CHECKPOINT_NS = 400 * MS, 150 * MS
SAMPLE_NS = 1_000 * MS
WARMUP = 5
BUCKET_BYTES = (409_600, 1_575_324, 1_312_772, 1_327_508, 486_196)
READY_SHARE = np.array([0.20, 0.42, 0.63, 0.83, 1.0])  # of backward, when the last gradient of each bucket is ready
BROADCAST, BARRIER = 0, 1  # kinds of collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is made, and which rank is late by how much in each step."""

    ranks: int
    steps: int
    per_host: int = 8
    epoch_steps: int = 500
    late_rank: int = 3
    late_ns: int = 3 * MS

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in order."""
        return [f"node{number:04d}" for number in range(-(-self.ranks // self.per_host))]

    def host_of(self, rank: int) -> int:
        """The number of the host of ``rank``."""
        return rank // self.per_host


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timetable:
    """When each step begins (with the end of the last one), and when its last rank arrives at the reduction, in ns.

    Both are on the clock of the first host; the clocks of all hosts are ``ahead`` of it.
    """

    begins: np.ndarray
    arrives: np.ndarray
    ahead: np.ndarray


def make_run(folder: Path, size: Size, seed: int = 0) -> Path:
    """A run directory of ``size`` in ``folder``, which is made."""
    for name in layout.FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    times = _times(size, np.random.default_rng(seed))
    for rank in range(size.ranks):
        _write_rank(folder, size, rank, times, np.random.default_rng([seed, rank]))
    for number, host in enumerate(size.hosts):
        (folder / layout.host_file(host)).write_text(json.dumps(_host(host, number), indent=1) + "\n")
        ended = {"host": host, "index": number, "code": 0, "failures": {}, "versions": {}}
        (folder / layout.ended_file(host)).write_text(json.dumps(ended) + "\n")
        _write_counters(folder, size, number, times, np.random.default_rng([seed, 1, number]))
    (folder / layout.RUN_JSON).write_text(json.dumps(_run(size), indent=1) + "\n")
    return folder


def _times(size: Size, rng: np.random.Generator) -> Timetable:
    ahead = np.concatenate([[0], rng.integers(-200 * MS, 200 * MS, len(size.hosts) - 1)])
    lateness = size.late_ns + np.abs(rng.normal(0, 0.3 * MS, size.steps))
    lasting = STEP_NS + lateness
    ends_epoch = np.arange(1, size.steps + 1) % size.epoch_steps == 0
    lasting = (lasting + ends_epoch * (EVALUATION_NS + CHECKPOINT_NS)).astype(np.int64)
    begins = BEGIN_NS + np.concatenate([[0], np.cumsum(lasting)])
    arrives = (begins[:-1] + MS + FORWARD_NS + BACKWARD_NS + lateness).astype(np.int64)
    return Timetable(begins=begins, arrives=arrives, ahead=ahead)


def _write_rank(folder: Path, size: Size, rank: int, times: Timetable, rng: np.random.Generator) -> None:
    ahead = int(times.ahead[size.host_of(rank)])
    clock = {"monotonic_ns": BEGIN_NS + ahead - 1_000 * MS, "realtime_ns": REALTIME_NS - 1_000 * MS}
    who = {"rank": rank, "host": size.hosts[size.host_of(rank)], "budget": 1 << 30}
    header = {
        "schema": tag("steps"),
        **who,
        "local_rank": rank % size.per_host,
        "ranks": size.ranks,
        "boot_id": f"00000000-0000-4000-8000-{size.host_of(rank):012d}",
        "pid": 20_000 + rank,
        "clock": clock,
        "cpus": "0-63",
        "boundary": "marks.step",
        "sources": ["marks", "loaders", "networks", "gradients", "optimizers", "collectives", "buckets"],
        "warmup_steps": WARMUP,
    }
    with (folder / layout.steps_file(rank)).open("w") as file:
        file.write(json.dumps(header) + "\n")
        file.writelines(_lines(size, rank, times, rng))
    events = [{"schema": tag("events"), **who}, *_events(size, rank, times, clock)]
    (folder / layout.events_file(rank)).write_text("".join(json.dumps(event) + "\n" for event in events))


def _lines(size: Size, rank: int, times: Timetable, rng: np.random.Generator) -> Iterator[str]:
    """The step records of ``rank``, as the recorder writes them."""
    begins, arrives, ahead = times.begins, times.arrives, int(times.ahead[size.host_of(rank)])
    steps = size.steps
    late = size.late_ns if rank == size.late_rank else 0
    jitter = np.abs(rng.normal(0, 0.3 * MS, (steps, 3))).astype(np.int64)
    forward = FORWARD_NS + late + jitter[:, 0]
    own_arrival = np.minimum(begins[:-1] + MS + forward + BACKWARD_NS + jitter[:, 1], arrives)
    done = arrives + 8 * MS + jitter[:, 2]
    backward_begin = begins[:-1] + MS + forward
    ready = backward_begin[:, None] + ((own_arrival - backward_begin)[:, None] * READY_SHARE).astype(np.int64) + ahead
    columns = zip(
        (begins + ahead).tolist(),
        (begins[1:] + ahead).tolist(),
        forward.tolist(),
        (done - backward_begin).tolist(),
        (own_arrival + ahead).tolist(),
        (done + ahead).tolist(),
        rng.integers(3_000, 40_000, steps).tolist(),
        ready.tolist(),
        strict=False,
    )
    for step, (begin, end, forward_ns, backward_ns, arrival, done_ns, small, buckets) in enumerate(columns):
        after_epoch = step > 0 and step % size.epoch_steps == size.epoch_steps - 1
        pauses = (EVALUATION_NS, CHECKPOINT_NS) if after_epoch else ("null", "null")
        tags = ["first_batch"] * (step == 0) + ["warmup"] * (step < WARMUP)
        tags += ["evaluation", "checkpoint"] * after_epoch
        calls = f',"collective_ns":{small},"collectives":[[{BARRIER},{step},{begin + MS},{small},{begin + MS + small}]]'
        yield (
            f'{{"step":{step},"epoch":{step // size.epoch_steps},"begin_ns":{begin},"end_ns":{end},"samples":64,'
            f'"input_ns":{small + 400_000},"copy_ns":null,"forward_ns":{forward_ns},"backward_ns":{backward_ns},'
            f'"optimizer_ns":{2 * small + 600_000},"evaluation_ns":{pauses[0]},"checkpoint_ns":{pauses[1]},'
            f'"arrival_ns":{arrival},"done_ns":{done_ns},"recording_ns":82050,"queued_ns":{12 * small}'
            + (f',"tags":{json.dumps(tags, separators=(",", ":"))}' if tags else "")
            + (f',"ready_ns":{buckets}' if step >= WARMUP - 1 else "").replace(" ", "")
            + f',"backward_passes":1{calls if step % 50 == 0 else ""}}}\n'
        )


def _events(size: Size, rank: int, times: Timetable, clock: dict[str, int]) -> Iterator[dict[str, Any]]:
    begins, ahead = times.begins, int(times.ahead[size.host_of(rank)])
    last = int(begins[-1]) + ahead
    yield {"kind": "clock", **clock}
    kinds = {"op": "barrier", "size_bytes": 0, "dtype": None, "group": "0", "group_ranks": size.ranks, "root": None}
    yield {"kind": "metric", "name": "steps_per_epoch", "value": size.epoch_steps, "step": 0, "epoch": 0, "t_ns": last}
    yield {"kind": "collective_kind", "id": BARRIER, **kinds, "inside": None, "t_ns": int(begins[0]) + ahead}
    yield {"kind": "buckets", "step": WARMUP - 1, "sizes_bytes": list(BUCKET_BYTES), "t_ns": int(begins[4]) + ahead}
    for epoch in range(-(-size.steps // size.epoch_steps)):
        at = {"step": epoch * size.epoch_steps, "epoch": epoch}
        yield {"kind": "epoch", **at, "t_ns": int(begins[at["step"]]) + ahead}
        end = int(begins[min(size.steps, (epoch + 1) * size.epoch_steps)]) + ahead
        spans = (("checkpoint", end - CHECKPOINT_NS, end), ("evaluation", end - 550 * MS, end - CHECKPOINT_NS))
        if (epoch + 1) * size.epoch_steps <= size.steps:
            for name, begin, finish in reversed(spans):
                yield {"kind": "span", "name": name, "begin_ns": begin, "end_ns": finish, **at}
            if rank == 0:
                top1 = 1 - 0.6 * 0.8**epoch
                yield {"kind": "metric", "name": "test_top1", "value": top1, **at, "t_ns": end}
    yield {"kind": "clock", "monotonic_ns": last, "realtime_ns": REALTIME_NS + last - ahead - BEGIN_NS}
    yield {"kind": "end", "steps": size.steps, "left_out": 0, "t_ns": last}


def _write_counters(folder: Path, size: Size, number: int, times: Timetable, rng: np.random.Generator) -> None:
    own, last = int(times.ahead[number]), int(times.begins[-1])
    header = {
        "schema": tag("counters"),
        "host": size.hosts[number],
        "boot_id": f"00000000-0000-4000-8000-{number:012d}",
        "clock": {"monotonic_ns": BEGIN_NS + own, "realtime_ns": REALTIME_NS},
        "interval_ns": SAMPLE_NS,
        "sources": ["psutil 7.2.2"],
        "marks_last": True,
    }
    first = number * size.per_host
    local = range(first, min(size.ranks, first + size.per_host))
    with (folder / layout.counters_file(size.hosts[number])).open("w") as file:
        file.write(json.dumps(header, separators=(",", ":")) + "\n")
        samples = (last - BEGIN_NS) // SAMPLE_NS + 1
        for sample in range(samples):
            at = BEGIN_NS + sample * SAMPLE_NS
            line = {"t_ns": at + own, **_sample(sample, local)} | ({"last": True} if sample == samples - 1 else {})
            if number:
                line |= {"against": size.hosts[0], "pings": [_ping(at + 10 * MS * k, own, rng) for k in range(4)]}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _sample(sample: int, ranks: range) -> dict[str, Any]:
    grown = {
        "cpu_ns": 900 * MS * sample,
        "read_bytes": 61_000_000 * sample,
        "write_bytes": 9_000_000 * sample,
        "read_calls": 180 * sample,
        "write_calls": 1_500 * sample,
        "storage_read_bytes": 4_096_000 * sample,
        "storage_write_bytes": 20_480 * sample,
        "switches": 170 * sample,
        "queued_ns": 12 * MS * sample,
    }
    one = {"processes": 1, "memory_bytes": 268_349_440, "threads": 5, **grown}
    return {
        "cpu_ns": 7_200 * MS * sample,
        "idle_ns": 56_000 * MS * sample,
        "memory_used_bytes": 3_162_476_544,
        "load_1min": 8.25,
        "nics": {"eth0": {"received_bytes": 89_000_000 * sample, "sent_bytes": 89_000_000 * sample}},
        "ranks": {str(rank): one for rank in ranks},
        "links": {},
    }


def _ping(at: int, ahead: int, rng: np.random.Generator) -> list[int]:
    """Four moments on monotonic clocks and the same on the real-time ones; answered by the first host."""
    out, inside, home = (int(part) for part in rng.integers(40_000, 90_000, 3))
    sent, received, answered, back = at + ahead, at + out, at + out + inside, at + out + inside + home + ahead
    real = (REALTIME_NS - BEGIN_NS + moment for moment in (at, received, answered, back - ahead))
    return [sent, received, answered, back, *real]


def _host(host: str, number: int) -> dict[str, Any]:
    cpu = {"model": "made", "architecture": "x86_64", "logical": 64, "physical": 64, "usable": 64, "quota": None}
    return {
        "schema": tag("host"),
        "host": host,
        "boot_id": f"00000000-0000-4000-8000-{number:012d}",
        "os": "made",
        "kernel": "Linux 6.1",
        "cpu": {**cpu, "vector": ["avx2"]},
        "gpus": [],
        "driver": None,
        "memory_bytes": 1 << 38,
        "nics": [{"name": "eth0", "bits_per_s": 10_000_000_000}],
        "file_system": "nfs",
        "clock_source": "tsc",
        "load_1min": 0.1,
        "fingerprint": "0000000000000000",
    }


def _run(size: Size) -> dict[str, Any]:
    return {
        "schema": tag("run"),
        "id": f"20260101T000000Z_made_n{size.ranks}_00000000",
        "name": "made",
        "kind": "train",
        "created_utc": "2026-01-01T00:00:00Z",
        "ended_utc": "2026-01-01T01:00:00Z",
        "status": "completed",
        "command": ["allpull", "train", "made"],
        "spec": {"train": {"precision": "float32"}},
        "launcher": "ssh",
        "ranks": size.ranks,
        "hosts": size.hosts,
        "threads_per_rank": 8,
        "global_batch": 64 * size.ranks,
        "versions": {"allpull": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "environment": {},
        "redacted": 0,
        "exit": {"code": 0},
        "gaps": [],
    }
