"""Throughput and step time over the steady steps of one job."""

from __future__ import annotations

import numpy as np

from allpull.analyse.statistics import ratio_interval
from allpull.analyse.steps.grid import Floats, Grid
from allpull.schema.results import Interval, StepTime


def step_times_s(grid: Grid) -> Floats:
    """Seconds of each step of the job, shape (steps,): the mean over ranks of end − begin.

    Synchronous ranks finish a step at about the same time; the mean weighs all ranks equally.
    """
    times: Floats = grid.wall_s.mean(axis=1)
    return times


def throughput(grid: Grid, *, seed: int = 0) -> Interval | None:
    """Samples per second of the whole job: Σ samples over steps and ranks ÷ Σ step times, with its interval.

    A ratio of sums, not a mean of ratios: a slow step counts for as long as it lasted. None where no step is given,
    a rank did not record its samples, or no time passed.
    """
    samples, times_s = grid.samples.sum(axis=1), step_times_s(grid)
    if not grid.steps or np.isnan(samples).any() or not times_s.sum() > 0:
        return None
    return ratio_interval(samples, times_s, seed=seed)


def samples_per_rank_step(grid: Grid) -> float | None:
    """Mean samples of one rank in one step; None where not all were recorded."""
    if not grid.steps or np.isnan(grid.samples).any():
        return None
    return float(grid.samples.mean())


def step_time(grid: Grid) -> StepTime | None:
    """Median and 95th percentile of the step times, in seconds; None without steps."""
    if not grid.steps:
        return None
    median, p95 = np.quantile(step_times_s(grid), [0.5, 0.95])
    return StepTime(median=float(median), p95=float(p95))
