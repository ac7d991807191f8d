"""Learning curves and accuracy, from the metrics that the training loop reported."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from allpull.analyse.statistics import evenly
from allpull.rundir.read.events import EventLog
from allpull.schema.events import Metric
from allpull.schema.results import Curve

SHARES = ("test_top1", "test_top5", "test_f1_micro", "test_f1_macro", "test_map")
"""How good a network is: right answers of one label a sample; F1 and mean average precision of several."""

WITHIN_EPOCH = ("train_loss", "train_top1", "train_top5")
"""Known after any step, not only at the end of an epoch."""

CURVES = ("train_loss", "test_loss", *SHARES, "train_top1", "train_top5")
MAX_CURVE_POINTS = 2000  # more than a page can show


def metrics_named(events: Mapping[int, EventLog], name: str) -> list[Metric]:
    """All values of one metric in the order of writing, from the lowest rank that reported it.

    Ranks reduce metrics before they report them, so one rank speaks for the job; in the trainer it is rank 0.
    """
    for rank in sorted(events):
        metrics = [metric for metric in events[rank].metrics if metric.name == name]
        if metrics:
            return metrics
    return []


def last_value(events: Mapping[int, EventLog], name: str) -> float | None:
    """The last value of a metric; None where it was never reported, or could not be computed that time."""
    metrics = metrics_named(events, name)
    return metrics[-1].value if metrics else None


def curves(events: Mapping[int, EventLog]) -> list[Curve]:
    """The curves of ``CURVES`` that were recorded, against epochs done, thinned to ``MAX_CURVE_POINTS``.

    The value of a test metric is known at the end of its epoch: epochs = epoch + 1. Those of training are known within
    one: epochs = step ÷ steps per epoch where that is known, else epoch + 1.
    """
    per_epoch = steps_per_epoch(events)
    series = []
    for name in CURVES:
        points = evenly(metrics_named(events, name), MAX_CURVE_POINTS)
        if points:
            fine = per_epoch if name in WITHIN_EPOCH else None
            epochs = [point.step / fine if fine else point.epoch + 1.0 for point in points]
            series.append(Curve(name=name, epochs=epochs, values=[point.value for point in points]))
    return series


def steps_per_epoch(events: Mapping[int, EventLog]) -> float | None:
    """Steps of one epoch: the metric of that name, else what epoch marks show.

    Of the distances between marks of consecutive epochs the longest counts, as an epoch that a run resumed within
    shows only its rest. None where neither shows it.
    """
    reported = last_value(events, "steps_per_epoch")
    if reported is not None and reported > 0:
        return reported
    for rank in sorted(events):
        marks = pairwise(events[rank].epochs)
        longest = max((later.step - mark.step for mark, later in marks if later.epoch == mark.epoch + 1), default=0)
        if longest > 0:
            return float(longest)
    return None
