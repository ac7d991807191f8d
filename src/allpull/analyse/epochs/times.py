"""Epoch time, time to solution, time to an accuracy, and samples/s over training and over everything."""

from __future__ import annotations

import statistics

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.of_ranks import moments_ns
from allpull.analyse.epochs.parts import PARTS, Epoch, Epochs, is_resumed
from allpull.analyse.learning import metrics_named
from allpull.analyse.statistics import CONFIDENCE, evenly
from allpull.analyse.student_t import quantile
from allpull.schema.epochs import AccuracyTime, EpochTime, RecordedEpoch
from allpull.schema.interval import Interval
from allpull.units import NS_PER_S

MAX_EPOCHS = 1000  # listed one by one
ACCURACIES = ("test_top1", "test_map")  # of one label a sample, of several


def epoch_time(epochs: Epochs) -> EpochTime | None:
    """The mean epoch with its spread; None where no epoch is complete."""
    averaged = epochs.averaged
    if not averaged:
        return None
    totals_s = [epoch.total_ns / NS_PER_S for epoch in averaged]
    mean_s = {part: statistics.fmean(epoch.parts_ns[part] for epoch in averaged) / NS_PER_S for part in PARTS}
    total_s = statistics.fmean(totals_s)
    half_s = None
    if len(totals_s) > 1:
        half_s = quantile(0.5 + CONFIDENCE / 2, len(totals_s) - 1) * statistics.stdev(totals_s) / len(totals_s) ** 0.5
    return EpochTime(
        total=total_s,
        **mean_s,
        epochs=len(averaged),
        interval=None if half_s is None else Interval(value=total_s, low=total_s - half_s, high=total_s + half_s),
        shortest=min(totals_s),
        longest=max(totals_s),
        may_be_cut=epochs.may_be_cut,
        first=_recorded(epochs.complete[0]) if epochs.has_first else None,
        each=[_recorded(epoch) for epoch in evenly(epochs.complete, MAX_EPOCHS)],
    )


def time_to_solution_s(epochs: Epochs) -> float | None:
    """From the begin of the first epoch to the end of the last; None where the training is not whole."""
    if not epochs.ends_training or epochs.begin_ns is None or not epochs.complete:
        return None
    return (epochs.complete[-1].end_ns - epochs.begin_ns) / NS_PER_S


def rates(epochs: Epochs) -> tuple[float | None, float | None]:
    """Samples/s of the averaged epochs while training, and over all their time; None where samples are not known."""
    averaged = epochs.averaged
    samples = [epoch.samples for epoch in averaged if epoch.samples is not None]
    if not averaged or len(samples) < len(averaged):
        return None, None
    trained_ns, total_ns = sum(epoch.parts_ns["training"] for epoch in averaged), sum(one.total_ns for one in averaged)
    return (
        sum(samples) * NS_PER_S / trained_ns if trained_ns else None,
        sum(samples) * NS_PER_S / total_ns if total_ns else None,
    )


def time_to_accuracy(run: AlignedRun, epochs: Epochs, wanted: float) -> AccuracyTime | None:
    """How long ``run`` took to an accuracy of ``wanted``, a fraction; None where no accuracy was reported."""
    events = run.data.events
    for name in ACCURACIES:
        reports = metrics_named(events, name)
        if not reports:
            continue
        values = [report.value for report in reports if report.value is not None]
        first = next((report for report in reports if report.value is not None and report.value >= wanted), None)
        time_s = None
        if first is not None and epochs.begin_ns is not None and not is_resumed(run):
            rank = next(rank for rank in sorted(events) if first in events[rank].metrics)
            time_s = (moments_ns(run, [(rank, first.t_ns)])[0] - epochs.begin_ns) / NS_PER_S
        return AccuracyTime(
            metric=name,
            wanted=wanted,
            best=max(values, default=None),
            time_s=time_s,
            epoch=None if first is None else first.epoch,
        )
    return None


def _recorded(epoch: Epoch) -> RecordedEpoch:
    return RecordedEpoch(
        epoch=epoch.number,
        steps=epoch.steps,
        samples=epoch.samples,
        total=epoch.total_ns / NS_PER_S,
        **{part: epoch.parts_ns[part] / NS_PER_S for part in PARTS},
    )
