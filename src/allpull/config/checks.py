"""Check options against each other: each may be valid alone and their combination still make no sense."""

from __future__ import annotations

from allpull.config.contradictions import of_the_trainer
from allpull.schema.spec import RunSpec, WatchSpec


def find_contradictions(spec: RunSpec) -> list[str]:
    """A line for each contradiction between options of ``spec``; none when they agree.

    >>> from allpull.schema.spec import LaunchSpec
    >>> from allpull.schema.trainspec import TrainSpec
    >>> find_contradictions(RunSpec(train=TrainSpec(global_batch=2), launch=LaunchSpec(ranks=4)))
    ['train.global_batch: 2 samples cannot be split over launch.ranks = 4; each rank needs at least one']
    """
    train, ranks, hosts = spec.train, spec.launch.ranks, spec.launch.hosts
    contradictions = []
    if ranks % hosts:
        contradictions.append(
            f"launch.ranks: {ranks:,} cannot be divided evenly over launch.hosts = {hosts:,}; "
            f"the nearest number that can is {max(1, round(ranks / hosts)) * hosts:,}"
        )
    if not spec.container.image and (spec.container.binds or spec.container.options):
        contradictions.append(
            "container.image: no image was given, so container.binds and container.options have no container"
        )
    if 0 < train.global_batch < ranks:
        contradictions.append(
            f"train.global_batch: {_samples(train.global_batch)} cannot be split over launch.ranks = {ranks:,}; "
            "each rank needs at least one"
        )
    if 0 < spec.data.limit < ranks:
        contradictions.append(
            f"data.limit: {_samples(spec.data.limit)} cannot be split over launch.ranks = {ranks:,}; "
            "each rank needs at least one"
        )
    if train.warmup_epochs > train.epochs:
        contradictions.append(
            f"train.warmup_epochs: {train.warmup_epochs:g} is more than train.epochs = {train.epochs:,}; "
            "the learning rate would never reach its full value"
        )
    if train.schedule == "step" and train.warmup_epochs > train.step_epochs:
        contradictions.append(
            f"train.warmup_epochs: {train.warmup_epochs:g} is more than train.step_epochs = {train.step_epochs:g}; "
            "the learning rate would fall before it reached its full value"
        )
    if train.schedule == "milestones" and train.milestones and train.warmup_epochs > min(train.milestones):
        contradictions.append(
            f"train.warmup_epochs: {train.warmup_epochs:g} is more than the first of train.milestones, "
            f"{min(train.milestones):g}; the learning rate would fall before it reached its full value"
        )
    return [*contradictions, *of_the_trainer(spec), *_of_watching(spec.watch)]


def _of_watching(watch: WatchSpec) -> list[str]:
    contradictions = []
    if 0 < watch.last_step <= watch.first_step:
        contradictions.append(
            f"watch.last_step: {watch.last_step:,} is not after watch.first_step = {watch.first_step:,}; "
            "no step would be recorded"
        )
    if 0 < watch.trace_every < watch.trace_steps:
        contradictions.append(
            f"watch.trace_every: {watch.trace_every:,} is less than watch.trace_steps = {watch.trace_steps:,}; "
            "a profiler window would begin before the previous one ends"
        )
    return contradictions


def _samples(count: int) -> str:
    return f"{count:,} sample{'s' if count != 1 else ''}"
