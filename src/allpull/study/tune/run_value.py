"""The objective of a run that has ended, from its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allpull.analyse.learning import steps_per_epoch
from allpull.rundir.read.events import EventLog
from allpull.schema.results import Interval, RunMetrics
from allpull.study.tune.objective import Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The objective of one run; None with the reason where it has none."""

    interval: Interval | None
    reason: str | None = None


def run_value(goal: Goal, measured: RunMetrics, events: Mapping[int, EventLog], *, whole_epochs: bool) -> Value:
    """The objective ``goal`` of a completed run.

    ``whole_epochs`` False: runs have a fixed number of steps, in which some configurations complete an epoch and others
    do not. So an epoch is that of its training alone at the steady rate, in all of them.
    """
    if goal.name == "throughput":
        return Value(interval=measured.throughput, reason=_no_rate(measured))
    if goal.name == "time_to_accuracy_s":
        return _time_to_accuracy(measured)
    return _whole_epoch(measured) if whole_epochs else _epoch_at_rate(measured, steps_per_epoch(events))


def _no_rate(measured: RunMetrics) -> str:
    if measured.steady.used:
        return "the samples of some steps were not recorded: no throughput"
    left_out = ", ".join(f"{reason} {count:,}" for reason, count in measured.steady.left_out.items())
    return f"no steady step is left ({left_out or 'none was recorded'}): give it more steps"


def _time_to_accuracy(measured: RunMetrics) -> Value:
    reached = measured.time_to_accuracy
    if reached is None or reached.time_s is None:
        best = "" if reached is None or reached.best is None else f"; its best was {reached.best:.4g}"
        return Value(interval=None, reason=f"it did not reach the accuracy{best}")
    return Value(interval=Interval(value=reached.time_s, low=None, high=None))


def _whole_epoch(measured: RunMetrics) -> Value:
    epoch = measured.epoch_s
    if epoch is None:
        return Value(interval=None, reason="; ".join(measured.epoch_notes) or "no epoch was completed")
    return Value(interval=epoch.interval or Interval(value=epoch.total, low=None, high=None))


def _epoch_at_rate(measured: RunMetrics, steps: float | None) -> Value:
    rate = measured.throughput
    if rate is None or steps is None or measured.samples_per_rank_step is None:
        return Value(interval=None, reason="the run does not show how many steps an epoch has, or at what rate")
    samples = steps * measured.samples_per_rank_step * measured.ranks
    low, high = (samples / bound if bound else None for bound in (rate.high, rate.low))
    return Value(interval=Interval(value=samples / rate.value, low=low, high=high))
