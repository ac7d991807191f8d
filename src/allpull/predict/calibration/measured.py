"""What one run measured: the work of its ranks, when its buckets were ready, and how long they took."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.steps.few_steps import in_few_steps
from allpull.errors import AllpullError
from allpull.predict.calibration.epochs import MeasuredEpochs, measured_epochs
from allpull.predict.calibration.parameters import Floats
from allpull.predict.terms.input import WAITED
from allpull.replay.engine import event_times, total_work_s
from allpull.replay.recording.bucket_times import missed_by_mix_s
from allpull.replay.recording.build import record_window
from allpull.replay.recording.step_choice import NoWindow
from allpull.replay.window import CALL, REDUCE, Reductions, Window
from allpull.rundir.user_command import user_command
from allpull.schema.run import RunRecord

LEAST_STEPS = 20  # two blocks of the bootstrap: fewer show no spread
PERIODIC = ("evaluation", "checkpoint")
WORKERS = re.compile(r"--?(num|n|data|loader)?[-_]?workers|-j")
MOST_DIGITS = 5
UNDEFINED, BOTH = "undefined", "cpu:gloo,cuda:nccl"  # ``init_process_group`` without a back-end has both
IN_TURN = 1.5  # times what the mean rank waits: so much does a step if waits of ranks do not coincide
UNEVEN_SHARE = 0.2  # of rank-steps: an epoch of five batches ends with one smaller; with more, there is no one batch


class CannotCalibrate(AllpullError):
    """A run that a forecast cannot be fitted to; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """One run, in its regular steps; times in s.

    ``work_s`` (steps, ranks): of a rank between two synchronisations, without time blocked in collectives; ``input_s``
    (steps, ranks): the part of it spent waiting for input; ``optimizer_s`` (steps, ranks): in the optimizer, once per
    step however many backward passes it has. ``walls_s`` (steps,): of whole steps. ``lead_s`` (steps, buckets): how
    long before its last gradient a rank had each bucket ready, mean over ranks; ``last_lead_s``: how long before the
    last gradient of all ranks all had it ready. ``bucket_s`` (steps, buckets): how long each took;
    ``tail_s`` (steps,): from the end of the last until ranks go on. ``calls_s`` (steps,): transfers of other
    collectives, mean over ranks. ``host_of`` (ranks,): the number of each rank's host. ``per_step``: reductions per
    step. ``bucket_bytes`` (buckets,), None: not known. ``is_whole_lane``: the time of each bucket is known, not only
    the exposed part of all of them. ``workers``: of a rank's loader, None: not known. ``epochs``: None where none is
    complete. ``loads_itself``: ranks make their batches in the process that trains, so that nothing hides that.
    ``missed_s`` (steps, mixes, scales): by how much mixes of latency and bytes miss the ends of reductions
    (``bucket_times.missed_by_mix_s``); None: a profiler measured the time of each bucket, or there is only one.
    """

    run: str
    backend: str | None
    ranks: int
    hosts: int
    host_of: NDArray[np.intp]
    batch: float | None
    work_s: Floats
    input_s: Floats
    optimizer_s: Floats
    walls_s: Floats
    lead_s: Floats
    last_lead_s: Floats
    bucket_s: Floats
    tail_s: Floats
    calls_s: Floats
    per_step: int
    bucket_bytes: Floats | None
    is_whole_lane: bool
    complete: bool
    workers: int | None = None
    epochs: MeasuredEpochs | None = None
    loads_itself: bool = False
    missed_s: Floats | None = None

    @property
    def steps(self) -> int:
        """Regular steps."""
        return int(self.work_s.shape[0])

    @property
    def step_s(self) -> float:
        """The mean step."""
        return float(self.walls_s.mean())

    @property
    def waits_for_input(self) -> bool:
        """Whether its loader, working ahead, limits the rate: then a step takes as long as it needs for a batch."""
        waits = float(self.input_s.mean()) > WAITED * self.step_s
        return waits and not self.loads_itself and not self.waits_in_turn

    @property
    def waits_in_turn(self) -> bool:
        """Whether a few batches take long, on one rank after the other: then their wait is a lateness of ranks."""
        long = in_few_steps(self.input_s, self.walls_s)
        return long is not None and float(self.input_s.max(axis=1).mean()) > IN_TURN * float(self.input_s.mean())

    @property
    def ranks_per_host(self) -> int:
        """Ranks of a host."""
        return -(-self.ranks // self.hosts)

    @property
    def place(self) -> tuple[int, int]:
        """Ranks and hosts."""
        return self.ranks, self.hosts


def measure(aligned: AlignedRun) -> MeasuredRun:
    """What ``aligned`` measured.

    Raises:
        CannotCalibrate: it has too few steps, or they do not show what ranks exchange.
    """
    record = aligned.data.record
    window = record_window(aligned)
    if isinstance(window, NoWindow):
        raise CannotCalibrate(f"{record.id}: {window.reason}")
    hosts = [aligned.data.headers[rank].host for rank in range(window.ranks)]
    host_of = np.unique(hosts, return_inverse=True)[1].astype(np.intp)
    made = measured(
        window,
        run=record.id,
        backend=_backend(aligned),
        host_of=host_of,
        stated_batch=None if record.global_batch is None else record.global_batch / record.ranks,
        workers=_workers(record),
    )
    is_profiled = not aligned.buckets.times.is_empty()
    return replace(
        made,
        epochs=measured_epochs(aligned, made.step_s),
        loads_itself=_loads_itself(aligned),
        missed_s=None if is_profiled else made.missed_s,
    )


def measured(
    window: Window,
    *,
    run: str,
    backend: str | None,
    host_of: NDArray[np.intp],
    stated_batch: float | None = None,
    workers: int | None = None,
) -> MeasuredRun:
    """What ``window`` measured.

    Raises:
        CannotCalibrate: it has too few regular steps, reductions that differ between steps, or batches that do.
    """
    regular = ~window.odd
    for name in PERIODIC:
        regular &= ~(window.per_step(name) > 0).any(axis=1)
    batch = _batch(window, regular, stated_batch, run)
    regular &= ~(np.isfinite(window.samples) & (window.samples != batch)).any(axis=1)  # the remainder of an epoch
    count = int(regular.sum())
    if count < LEAST_STEPS:
        raise CannotCalibrate(
            f"{run}: {count} regular steps after warm-up are too few to fit", hint=f"train {LEAST_STEPS + 10} or more"
        )
    per_step = _per_step(window, regular, run)
    lane = window.reductions
    work_s = _work(window)[regular]
    if lane is None or per_step == 0:
        lead_s, bucket_s, tail_s, size_bytes = (np.zeros((count, 1)), np.zeros((count, 1)), np.zeros(count), None)
        last_lead_s = lead_s
    else:
        lead_s = _by_step(lane.lead_s.mean(axis=2), window)[regular]
        last_lead_s = _by_step(_leads_of_last(window, lane), window)[regular]
        bucket_s = _by_step(lane.seconds, window)[regular]
        tail_s = _by_step(lane.tail_s.mean(axis=1)[:, None], window)[regular, 0] * per_step
        size_bytes = None if lane.size_bytes is None else lane.size_bytes.astype(np.float64)
    missed_s = None if lane is None or size_bytes is None or per_step == 0 else _missed_s(window, lane, size_bytes)
    return MeasuredRun(
        run=run,
        backend=backend,
        ranks=window.ranks,
        hosts=int(np.unique(host_of).size),
        host_of=host_of,
        batch=batch,
        work_s=work_s,
        input_s=window.per_step("input")[regular],
        optimizer_s=window.per_step("optimizer")[regular],
        walls_s=window.wall_s[regular].mean(axis=1),
        lead_s=lead_s,
        last_lead_s=last_lead_s,
        bucket_s=bucket_s,
        tail_s=tail_s,
        calls_s=_calls_s(window)[regular],
        per_step=per_step,
        bucket_bytes=size_bytes,
        is_whole_lane=window.level == "bucket",
        complete=window.complete,
        workers=workers,
        missed_s=None if missed_s is None else missed_s[regular],
    )


def _per_step(window: Window, regular: NDArray[np.bool_], run: str) -> int:
    """Reductions of each regular step.

    Raises:
        CannotCalibrate: they differ, or only some steps have any.
    """
    counts = np.bincount(window.step_of[window.kind == REDUCE], minlength=window.steps.size)[regular]
    if counts.min() != counts.max():
        raise CannotCalibrate(
            f"{run}: the observation has {counts.min()} to {counts.max()} reductions of gradients per step: "
            "what ranks exchange is known of some steps only"
        )
    lane = window.reductions
    if counts[0] > 0 and lane is not None and lane.networks is not None and np.unique(lane.networks).size > 1:
        raise CannotCalibrate(f"{run}: several networks are reduced: forecasts are of one")
    return int(counts[0])


def _work(window: Window) -> Floats:
    """Work of each rank in each step, (steps, ranks)."""
    return window.sums(total_work_s(window))


def _calls_s(window: Window) -> Floats:
    """Transfers of the collectives that the program calls, mean over ranks, (steps,)."""
    calls = np.zeros((window.steps.size, window.ranks))
    at = window.kind == CALL
    np.add.at(calls, window.step_of[at], window.transfer_s[at])
    means: Floats = calls.mean(axis=1)
    return means


def _leads_of_last(window: Window, lane: Reductions) -> Floats:
    """How long before the last gradient of all ranks each bucket was ready on all of them, (reductions, buckets).

    A rank that is late in backward has had its first buckets ready for longer: they are on their way meanwhile.
    """
    stand_s = event_times(window).stand_s[window.kind == REDUCE]
    leads: Floats = stand_s.max(axis=1)[:, None] - _ready_s(stand_s, lane)
    return leads


def _ready_s(stand_s: Floats, lane: Reductions) -> Floats:
    """When the last rank had each bucket ready, (reductions, buckets)."""
    ready: Floats = (stand_s[:, None, :] - lane.lead_s).max(axis=2)
    return ready


def _missed_s(window: Window, lane: Reductions, size_bytes: Floats) -> Floats | None:
    """``missed_s`` of all steps; None: one bucket shows no mix."""
    if size_bytes.size < 2:
        return None
    ready_s = _ready_s(event_times(window).stand_s[window.kind == REDUCE], lane)
    ended_s = np.full(ready_s.shape[0], -np.inf)
    for bucket in range(size_bytes.size):
        ended_s = np.maximum(ended_s, ready_s[:, bucket]) + lane.seconds[:, bucket]
    return _by_step(missed_by_mix_s(ready_s, ended_s, size_bytes), window)


def _by_step(values: Floats, window: Window) -> Floats:
    """Means over the reductions of each step of ``values`` (reductions, …)."""
    of_step = window.step_of[window.kind == REDUCE]
    sums = np.zeros((window.steps.size, *values.shape[1:]))
    np.add.at(sums, of_step, values)
    counts = np.maximum(np.bincount(of_step, minlength=window.steps.size), 1)
    means: Floats = sums / counts.reshape(-1, *[1] * (sums.ndim - 1))
    return means


def _batch(window: Window, regular: NDArray[np.bool_], stated: float | None, run: str) -> float | None:
    """Samples of a rank per step; ``stated`` where none were recorded.

    Raises:
        CannotCalibrate: they differ between ranks or steps.
    """
    samples = window.samples[regular]
    known = samples[np.isfinite(samples)]
    if not known.size:
        return stated
    usual, times = Counter(known.tolist()).most_common(1)[0]
    if times < (1 - UNEVEN_SHARE) * known.size:
        raise CannotCalibrate(
            f"{run}: ranks had {known.min():g} to {known.max():g} samples per step: a forecast needs one batch",
            hint="train with the same batch on every rank",
        )
    return float(usual)


def _workers(record: RunRecord) -> int | None:
    """Workers of a rank's loader: of the trainer, or an option of the user's program that is called so."""
    data = record.spec.get("data")
    stated = data.get("workers") if record.kind == "train" and isinstance(data, Mapping) else None
    if record.kind == "run":
        options = user_command(record.command).options
        stated = next((value for name, value in options.items() if WORKERS.fullmatch(name)), None)
    text = str(stated)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS and int(text) > 0 else None


def _loads_itself(aligned: AlignedRun) -> bool:
    """Whether no rank of a user's program had another process beside it, and so no worker of a loader."""
    run = aligned.data
    most = run.counters["processes"].max() if run.record.kind == "run" else None
    return most == 1 and not any(log.loaders for log in run.events.values())


def _backend(aligned: AlignedRun) -> str | None:
    """The back-end of the process group that reduces, in lower case; None: not recorded."""
    groups = [group for log in aligned.data.events.values() for group in log.process_groups]
    named = next((group.backend.lower() for group in groups if group.backend), None)
    if named is None or not (named == UNDEFINED or ":" in named):
        return named
    by_device = dict(one.split(":", 1) for one in (BOTH if named == UNDEFINED else named).split(",") if ":" in one)
    return by_device.get("cuda" if aligned.on_device else "cpu", named)
