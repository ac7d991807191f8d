"""Take a snapshot of a running job: the last steps of every rank, and what each is doing now.

A snapshot reads a bounded piece at the end of each file, so its cost does not depend on the job's age. What cannot be
read is left out; a later snapshot includes it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.live.activity import (
    ARRIVED_NS,
    NOTHING,
    OPERATION,
    OPERATIONS,
    PLACE,
    SINCE_NS,
    STEP,
    WORDS,
    live_numbers,
)
from allpull.rundir.read.endings import shows_end
from allpull.rundir.read.headers import rank_header, recorded_ranks
from allpull.rundir.read.lenient import last_records
from allpull.rundir.read.processes import boot_id, is_alive
from allpull.rundir.read.unfinished import is_over
from allpull.rundir.run_record import read_record
from allpull.schema.run import UNENDED, RunRecord
from allpull.schema.steps import PHASES

TAIL_BYTES = 1 << 15  # about a hundred steps
LEAST_OF_REDUCTION = 9  # numbers: ``schema.steps.Reduction`` with one bucket
MAX_RANKS = 4096  # that one snapshot reads
FRESH_S = 3.0  # records are written every second: a rank that wrote so recently is alive, even under another pid
PLACES = (*PHASES, "collective")  # the live numbers name one of these; later places are the program's own phases


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSnapshot:
    """One of the last steps of a rank, in ns; ``blocked_ns`` is its time in collectives.

    ``phases_ns`` has that time under ``collective``, and ``backward`` without it.
    """

    step: int
    epoch: int
    begin_ns: int
    end_ns: int
    samples: int | None
    phases_ns: dict[str, int]
    blocked_ns: int
    is_tagged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a rank does now: its phase, since when (its monotonic clock), and the collective it is in, if any."""

    step: int
    phase: str | None
    since_ns: int
    operation: str | None
    is_waiting: bool
    """In a collective, or in a backward whose gradients are all ready, which contains DDP's all-reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """One rank. ``idle_s``: time since its last record.

    ``alive`` is None where it is unknown: the rank runs on another machine, or writes from a process that is not
    visible here (containers number their processes differently).
    """

    rank: int
    host: str
    pid: int
    alive: bool | None
    ended: bool
    steps: tuple[StepSnapshot, ...]
    activity: Activity | None
    idle_s: float
    now_ns: int | None
    """Now, on the rank's monotonic clock; None where that is another machine's."""
    is_observed: bool = True
    """Whether its steps are recorded now; a job may record only some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A running job."""

    record: RunRecord
    ranks: tuple[RankSnapshot, ...]
    metrics: dict[str, float]
    """The last value of each metric that rank 0 recorded, such as ``steps_per_epoch``."""
    is_over: bool = False
    """Whether it was killed together with the process that would close its record."""


def job_snapshot(directory: Path) -> JobSnapshot:
    """The job in ``directory`` as it is now.

    Raises:
        RunDirError: this is no run directory.
    """
    root = safe_open.checked_directory(directory)
    record = read_record(root)
    begins_later = _first_step(record) > 0
    snapshots = [_rank(root, rank, begins_later=begins_later) for rank in recorded_ranks(root)[:MAX_RANKS]]
    metrics = {
        str(event["name"]): float(event["value"])
        for event in last_records(root, layout.events_file(0), TAIL_BYTES)
        if event.get("kind") == "metric" and isinstance(event.get("value"), int | float) and "name" in event
    }
    return JobSnapshot(
        record=record,
        ranks=tuple(rank for rank in snapshots if rank is not None),
        metrics=metrics,
        is_over=record.status in UNENDED and is_over(root, record),
    )


def _first_step(record: RunRecord) -> int:
    """The first step that is recorded."""
    watch = record.spec.get("watch")
    first = watch.get("first_step") if isinstance(watch, dict) else None
    return first if isinstance(first, int) else 0


def _rank(root: Path, rank: int, *, begins_later: bool) -> RankSnapshot | None:
    header = rank_header(root, rank)
    if header is None or header.pid is None:
        return None
    try:
        idle_s = time.time() - (root / layout.steps_file(rank)).lstat().st_mtime
    except OSError:
        return None
    is_here = header.boot_id is not None and header.boot_id == boot_id()
    steps = last_records(root, layout.steps_file(rank), TAIL_BYTES)
    events = last_records(root, layout.events_file(rank), TAIL_BYTES)
    switched = [bool(event.get("on")) for event in events if event.get("kind") == "watching"]
    return RankSnapshot(
        rank=rank,
        host=header.host,
        pid=header.pid,
        alive=(is_alive(header.pid) or (None if idle_s < FRESH_S else False)) if is_here else None,
        ended=shows_end(events),
        steps=tuple(step for step in map(_step, steps) if step is not None),
        activity=_activity(root, rank),
        idle_s=max(0.0, idle_s),
        now_ns=time.monotonic_ns() if is_here else None,
        is_observed=switched[-1] if switched else not begins_later,
    )


def read_live(root: Path, rank: int) -> tuple[int, ...] | None:
    """The numbers that ``rank`` shows now; None: its file is missing, incomplete, or no file of ours."""
    try:
        return live_numbers(safe_open.read_whole(root, layout.live_file(rank), 8 * WORDS))
    except RunDirError:
        return None


def _activity(root: Path, rank: int) -> Activity | None:
    live = read_live(root, rank)
    if live is None or not live[SINCE_NS]:
        return None
    place, operation = live[PLACE], live[OPERATION]
    phase = None if place == NOTHING else PLACES[place] if 0 <= place < len(PLACES) else "its own phase"
    known = 0 <= operation < len(OPERATIONS)
    return Activity(
        step=live[STEP],
        phase=phase,
        since_ns=live[SINCE_NS],
        operation=OPERATIONS[operation].strip("_") if known else None,
        is_waiting=phase == "collective" or (phase == "backward" and live[ARRIVED_NS] >= live[SINCE_NS]),
    )


def _step(record: dict[str, Any]) -> StepSnapshot | None:
    def number(name: str) -> int:
        value = record.get(name)
        return value if isinstance(value, int) else 0

    if not all(isinstance(record.get(name), int) for name in ("step", "begin_ns", "end_ns")):
        return None
    in_backward = _in_reductions(record.get("reductions"))
    if in_backward is None:
        in_backward = max(0, number("done_ns") - number("arrival_ns")) if record.get("arrival_ns") else 0
    samples = record.get("samples")
    phases_ns = {phase: number(f"{phase}_ns") for phase in PLACES if record.get(f"{phase}_ns") is not None}
    if in_backward:
        phases_ns["backward"] = max(0, phases_ns.get("backward", 0) - in_backward)
        phases_ns["collective"] = phases_ns.get("collective", 0) + in_backward
    return StepSnapshot(
        step=number("step"),
        epoch=number("epoch"),
        begin_ns=number("begin_ns"),
        end_ns=number("end_ns"),
        samples=samples if isinstance(samples, int) else None,
        phases_ns=phases_ns,
        blocked_ns=number("collective_ns") + in_backward,
        is_tagged=bool(record.get("tags")),
    )


def _in_reductions(listed: Any) -> int | None:
    """Time from the arrivals of a rank in its ``listed`` reductions until they were done, ns; None: it lists none."""
    if not isinstance(listed, list) or not listed:
        return None
    passes: dict[int, tuple[int, int]] = {}  # by their begin: networks that reduce in one pass are done together
    for one in listed:
        if not isinstance(one, list) or len(one) < LEAST_OF_REDUCTION or not all(type(value) is int for value in one):
            return None
        arrival, done = passes.get(one[1], (one[-1], one[2]))
        passes[one[1]] = max(arrival, one[-1]), max(done, one[2])
    return sum(max(0, done - arrival) for arrival, done in passes.values())
