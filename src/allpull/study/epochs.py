"""The epochs of a point, and whether those of several points are the same work."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from allpull.schema.epochs import EpochTime
from allpull.schema.results import RunMetrics
from allpull.schema.studied import StudyPoint

EQUAL = 0.05  # by which samples of an epoch may differ: ragged last batches


def metrics_of(point: StudyPoint) -> list[RunMetrics]:
    """The metrics of its completed repeats."""
    return [run.metrics for run in point.runs if run.metrics is not None]


def epoch_of(point: StudyPoint) -> EpochTime | None:
    """The parts of an epoch in the first repeat that has them."""
    return next((one.epoch_s for one in metrics_of(point) if one.epoch_s is not None), None)


def samples_per_epoch(point: StudyPoint) -> int | None:
    """Samples of an epoch of all ranks, the median over the recorded ones; None: not recorded."""
    epoch = epoch_of(point)
    known = [one.samples for one in epoch.each if one.samples] if epoch is not None else []
    return round(median(known)) if known else None


def epochs_of(point: StudyPoint) -> int | None:
    """Complete epochs of the first repeat that has any."""
    epoch = epoch_of(point)
    return len(epoch.each) or None if epoch is not None else None


def may_be_cut(points: Iterable[StudyPoint]) -> bool:
    """Whether the epochs of all ``points`` that have some may have ended with their programs."""
    known = [epoch.may_be_cut for point in points if (epoch := epoch_of(point)) is not None]
    return bool(known) and all(known)


def same_epochs(points: Iterable[StudyPoint]) -> bool:
    """Whether an epoch has the same samples at all ``points``, as far as they are recorded.

    A rehearsal has epochs of so many steps: with more ranks they are more work, and no slower for it.
    """
    known = [samples for point in points if (samples := samples_per_epoch(point)) is not None]
    return not known or max(known) <= min(known) * (1 + EQUAL)
