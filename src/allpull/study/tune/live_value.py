"""What the live records of a running job show of the objective, so that a hopeless run need not reach its end."""

from __future__ import annotations

import numpy as np

from allpull.analyse.statistics import ratio_interval
from allpull.rundir.live.snapshot import JobSnapshot
from allpull.schema.results import Interval
from allpull.study.tune.objective import Goal

MIN_STEPS = 20  # after the warm-up: fewer show neither a rate nor its spread
MAX_RANKS = 64  # of which walls are averaged: all have nearly the same, as they wait for each other


def live_value(goal: Goal, job: JobSnapshot, *, warmup_steps: int, seconds: float) -> Interval | None:
    """The objective so far, with its 95 % interval; None: too little is known. ``seconds``: since the job began.

    Of an epoch it is the training alone, at the rate so far, so the epoch takes at least as long. Time to accuracy is
    at least the time that has passed.
    """
    if goal.name == "time_to_accuracy_s":
        return Interval(value=seconds, low=seconds, high=None)
    rate = live_rate(job, warmup_steps)
    if rate is None or rate.low is None or rate.high is None or rate.low <= 0 or goal.name == "throughput":
        return rate
    per_epoch = job.metrics.get("steps_per_epoch")
    batch = _batch(job)
    if per_epoch is None or batch is None:
        return None
    samples = per_epoch * batch
    return Interval(value=samples / rate.value, low=samples / rate.high, high=samples / rate.low)


def live_rate(job: JobSnapshot, warmup_steps: int) -> Interval | None:
    """Samples/s of the whole job over its last steps that all ranks have recorded, without the first ``warmup_steps``.

    None: too few of them, or not every rank is here.
    """
    if not job.ranks or len(job.ranks) < job.record.ranks:
        return None
    by_rank = [
        {step.step: step for step in rank.steps if step.step >= warmup_steps and not step.is_tagged}
        for rank in job.ranks
    ]
    common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    if len(common) < MIN_STEPS:
        return None
    samples = np.array([sum(steps[number].samples or 0 for steps in by_rank) for number in common], dtype=float)
    if not samples.all():
        return None
    walls = [[steps[number].end_ns - steps[number].begin_ns for number in common] for steps in by_rank[:MAX_RANKS]]
    return ratio_interval(samples, np.mean(walls, axis=0) / 1e9)


def _batch(job: JobSnapshot) -> float | None:
    """Mean samples of a step on all ranks; None where they are not recorded."""
    counted = [[step.samples for step in rank.steps if step.samples is not None] for rank in job.ranks]
    return float(sum(np.mean(samples) for samples in counted)) if counted and all(counted) else None
