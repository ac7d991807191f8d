"""How fast the workers of each rank make batches, as they timed it themselves: known also where nobody waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.leave_one_out import beyond_others
from allpull.replay.window import Bools
from allpull.rundir.read.run import RunData
from allpull.schema.events import LoaderWork
from allpull.units import NS_PER_S

USUAL_AHEAD = 2  # batches per worker: torch's default
UNEVEN = 1.25  # times the mean of a rank's workers: one that is so much slower holds up the others, in its turn
ENOUGH = 20  # batches of a worker, for its own mean
ERRORS = 4.0  # standard errors between two paces that differ: of 64 equal ranks, one in 250 runs has one
DIFFERENT = 0.02  # of a pace: less is not worth a day's work, however certain
UNKNOWN = 0.05  # of a pace: its standard error where ranks reported once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderPace:
    """``workers`` of each rank make a batch in ``batch_s`` (ranks,), and all of a rank those of a step in ``step_s``.

    ``ahead``: how many steps before it is needed a batch is begun, at most. ``error_s`` (ranks,): the standard error of
    ``step_s``, by how much the reports of workers differ. ``slowest`` (ranks,): how many times as long for a batch as
    its median other worker the slowest worker of each rank takes; 1: hardly longer, or it is not known. None: nowhere.
    """

    workers: int
    batch_s: Floats
    step_s: Floats
    ahead: int
    error_s: Floats
    slowest: Floats | None = None

    @property
    def slower(self) -> Bools:
        """Which ranks have workers that are slower than the others', beyond their noise, (ranks,)."""
        if self.step_s.size < 2:
            return np.zeros(self.step_s.size, dtype=np.bool_)
        beyond_s = beyond_others(self.step_s[None])[0]
        noise_s = ERRORS * np.hypot(self.error_s, np.median(self.error_s))
        is_slower: Bools = beyond_s > np.maximum(noise_s, DIFFERENT * self.step_s)
        return is_slower


def loader_pace(run: RunData, steps: NDArray[np.int64]) -> LoaderPace | None:
    """The pace of workers during ``steps``; None: that of a rank is not known, or ranks have different loaders."""
    rows, reports = [], []
    for used in _used(run, steps):
        row = _of_rank(used)
        if row is None:
            return None
        rows.append(row)
        reports.append(used)
    if not rows or len({workers for workers, *_ in rows}) > 1:
        return None
    step_s = np.array([step_s for _, _, step_s, _ in rows])
    return LoaderPace(
        workers=rows[0][0],
        batch_s=np.array([batch_s for _, batch_s, _, _ in rows]),
        step_s=step_s,
        ahead=min(ahead for *_, ahead in rows),
        error_s=step_s * _relative_error(reports),
        slowest=np.array([_slowest(*_made(work)) for work in reports]),
    )


def worker_counts(run: RunData, steps: NDArray[np.int64]) -> tuple[int, ...]:
    """The most workers that each rank had at a time during ``steps``; empty: not known of all."""
    counts = [max((len(one.batches) for one in used), default=0) for used in _used(run, steps)]
    return tuple(counts) if all(counts) else ()


def _used(run: RunData, steps: NDArray[np.int64]) -> list[list[LoaderWork]]:
    """What the workers of each rank made during ``steps``."""
    logs = [run.events.get(rank) for rank in range(run.record.ranks)]
    every = [() if log is None else log.loaders for log in logs]
    return [[one for one in work if one.first_step <= steps[-1] and one.step > steps[0]] for work in every]


def keeps_workers(run: RunData) -> bool:
    """Whether workers live on from one pass over their loader to the next: an iterator makes batches in both."""
    for log in run.events.values():
        begins = [mark.step for mark in log.epochs[1:]]
        spans: dict[int, tuple[int, int]] = {}
        for one in log.loaders:
            first, last = spans.get(one.loader, (one.first_step, one.step))
            spans[one.loader] = min(first, one.first_step), max(last, one.step)
        if any(first < step and last > step + 1 for first, last in spans.values() for step in begins):
            return True
    return False


def _relative_error(reports: Sequence[Sequence[LoaderWork]]) -> Floats:
    """The standard error of each rank's mean batch, relative to it, from all ranks' scatter about their own means."""
    scatter, freedom, made = 0.0, 0, np.zeros(len(reports))
    for rank, work in enumerate(reports):
        batches = np.concatenate([one.batches for one in work]).astype(np.float64)
        making_s = np.concatenate([one.making_ns for one in work]) / NS_PER_S
        some = batches > 0
        each = making_s[some] / batches[some] * (batches.sum() / making_s.sum())
        scatter += float((batches[some] * (each - 1.0) ** 2).sum())
        freedom += int(some.sum()) - 1
        made[rank] = batches.sum()
    if freedom < 1:
        return np.full(len(reports), UNKNOWN)
    error: Floats = np.sqrt(scatter / freedom / made)
    return error


def _of_rank(work: Sequence[LoaderWork]) -> tuple[int, float, float, int] | None:
    """Workers, s per batch and per step, and steps ahead; None: not known, or from several loaders at once."""
    counts = {len(one.batches) for one in work} | {len(one.making_ns) for one in work}
    if len(counts) != 1 or any(_overlap(one, other) for one, other in pairwise(work)):
        return None
    (workers,) = counts
    batches, making_s = _made(work)
    steps = work[-1].step - work[0].first_step
    if not (batches.sum() > 0 and making_s.sum() > 0 and steps > 0):
        return None
    batch_s = float(making_s.sum() / batches.sum())
    if _slowest(batches, making_s) > 1:
        batch_s = float((making_s / batches).max())  # batches are taken from workers in turn
    of_worker = max((one.ahead or USUAL_AHEAD) for one in work)
    per_step = _taken_per_step(int(batches.sum()), steps, workers * of_worker)
    return workers, batch_s, float(batch_s * per_step / workers), max(1, round(workers * of_worker / per_step))


def _made(work: Sequence[LoaderWork]) -> tuple[NDArray[np.int64], Floats]:
    """What each worker made, and how long that took it in s, both (workers,); all events have as many workers."""
    making_ns = np.array([one.making_ns for one in work]).sum(axis=0)
    return np.array([one.batches for one in work]).sum(axis=0), making_ns / NS_PER_S


def _slowest(batches: NDArray[np.int64], making_s: Floats) -> float:
    """How many times as long for a batch as the median other worker the slowest takes; 1: it holds up no other."""
    if batches.size < 2 or batches.min() < ENOUGH:
        return 1.0
    each_s = making_s / batches
    if not each_s.max() > UNEVEN * making_s.sum() / batches.sum():
        return 1.0
    others_s = float(np.median(np.delete(each_s, each_s.argmax())))
    return float(each_s.max()) / others_s if others_s > 0 else 1.0


def _taken_per_step(made: int, steps: int, ahead: int) -> float:
    """Batches per step of ``made`` ones, of which up to ``ahead`` may be for later steps.

    >>> _taken_per_step(124, 120, 4), _taken_per_step(480, 120, 4), _taken_per_step(60, 120, 4)
    (1, 4, 0.5)
    """
    whole = (made + 1) // steps
    return whole if whole >= 1 and made - whole * steps <= ahead + 1 else made / steps


def _overlap(one: LoaderWork, later: LoaderWork) -> bool:
    """Whether two loaders were used at once; the next one begins in the step that ends the one before."""
    return later.first_step < one.step - 1
