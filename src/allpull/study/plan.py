"""The plan of a study: its points, the order of its runs, what they cost, and what was published."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from allpull.published.series import published_series
from allpull.schema.base import tag
from allpull.schema.studied import PlannedPoint, StudyPlan
from allpull.study.costs import Cost, Costs, costs_elsewhere
from allpull.study.directory import cluster_file, is_study, read_attempts, recorded, runs_by_point
from allpull.study.file import StudyFile
from allpull.study.forecast import forecast_costs
from allpull.study.network_size import of_rehearsal, of_trainings
from allpull.study.parameters import ignores_steps
from allpull.study.points import Point, show_parameters, unused_excludes
from allpull.study.startable import check_commands, missing_scripts
from allpull.units import counted


def run_order(points: Sequence[Point], repeats: int, seed: int) -> list[tuple[str, int]]:
    """(Point, repeat) in the order in which they are run: rounds of all points, each shuffled.

    A drift of the machine then acts on all points alike (a randomised block design; Box, Hunter & Hunter 2005,
    chapter 4), and every point is measured once before any is measured twice.
    """
    order = []
    for repeat in range(repeats):
        ids = [point.id for point in points]
        random.Random(f"{seed}/{repeat}").shuffle(ids)  # noqa: S311  an order, no secret
        order += [(id_, repeat) for id_ in ids]
    return order


def plan(study: StudyFile, points: Sequence[Point], directory: Path) -> StudyPlan:
    """What ``allpull study run`` would do in ``directory``, where some of it may be done already.

    Raises:
        UnknownName: a published series does not exist.
        ConfigError: a command cannot be started.
    """
    settings = study.settings
    check_commands(settings.name, points)
    known = is_study(directory)
    forecasts: dict[str, Cost] = {}
    if known:
        own = [recorded(point) for point in points]
        forecasts = forecast_costs(directory, own, scaling=settings.scaling, fixed_steps=bool(settings.steps))
    expected = forecasts | costs_elsewhere(directory, [point.id for point in points])
    costs = Costs(points, read_attempts(directory) if known else (), expected)
    done: dict[str, set[int]] = {}
    for (id_, repeat), runs in (runs_by_point(directory) if known else {}).items():
        if any(record.status == "completed" for _, record in runs):
            done.setdefault(id_, set()).add(repeat)
    counts = _parameters(study, points)
    planned = [
        _planned(point, study, directory, costs=costs, done=len(done.get(point.id, ())), parameters=counts[point.id])
        for point in points
    ]
    missing = [(point, costs.of(point.id), max(0, point.repeats - point.done)) for point in planned]
    missing = [(point, cost, runs) for point, cost, runs in missing if runs]
    seconds = [cost.seconds * runs if cost else None for _, cost, runs in missing]
    rank_s = [cost.seconds * runs * point.ranks if cost else None for point, cost, runs in missing]
    return StudyPlan(
        schema=tag("plan"),
        name=settings.name,
        title=settings.title,
        directory=str(directory),
        points=planned,
        order=[one for one in run_order(points, settings.repeats, settings.seed) if one[1] not in done.get(one[0], ())],
        cost_s=None if None in seconds else sum(one for one in seconds if one is not None),
        rank_hours=None if None in rank_s else sum(one for one in rank_s if one is not None) / 3600,
        published=published_series(study.published),
        changed=list(study.changed),
        notes=[*study.settings.notes, *_notes(study), *missing_scripts(points)],
    )


def _planned(
    point: Point, study: StudyFile, directory: Path, *, costs: Costs, done: int, parameters: int | None
) -> PlannedPoint:
    cost, repeats = costs.of(point.id), study.settings.repeats
    return PlannedPoint(
        id=point.id,
        parameters=point.parameters,
        series=point.series,
        ranks=point.job.ranks,
        hosts=point.job.hosts,
        command=shown_command(point, directory),
        trainable_parameters=parameters,
        cost_s=None if cost is None else cost.seconds * repeats,
        cost_from=None if cost is None else cost.basis,
        repeats=repeats,
        done=done,
        labels=list(point.labels),
    )


def shown_command(point: Point, directory: Path) -> list[str]:
    """What a user would type to run ``point`` alone."""
    if point.job.kind != "rehearse":
        return list(point.job.command)
    return ["allpull", "rehearse", str(cluster_file(directory, point)), *point.job.command]


def _parameters(study: StudyFile, points: Sequence[Point]) -> dict[str, int | None]:
    """Trainable parameters of the network of each point; None for a command."""
    trained = {point.id: point.job.spec for point in points if point.job.spec is not None}
    counts = of_trainings([(study.run.recipe, spec) for spec in trained.values()])
    known = dict(zip(trained, counts, strict=True))
    for point in points:
        cluster = point.job.configuration.get("cluster")
        known.setdefault(point.id, None if cluster is None else of_rehearsal(cluster))
    return known


def _notes(study: StudyFile) -> list[str]:
    settings, notes = study.settings, []
    if study.source == "command" and not settings.steps and not settings.run_half_width:
        bound = f"study.timeout = '{settings.timeout}'" if settings.timeout else "nothing; set study.steps or timeout"
        notes.append(f"the command runs to its own end; what bounds its time: {bound}")
    notes += [f"[[exclude]] {show_parameters(one)} matches no point" for one in unused_excludes(study)]
    if ignores_steps(study):
        notes.append(f"the command has no {{steps}}: each run is ended after its first {settings.steps} steps")
    if settings.run_half_width:
        last = f"after {settings.steps} steps" if settings.steps else "by itself"
        notes.append(
            f"a run is ended once its throughput is known to ± {100 * settings.run_half_width:g} %, or ends {last}: "
            "costs are upper bounds"
        )
    if settings.half_width:
        notes.append(
            f"a point is repeated until its throughput is known to ± {100 * settings.half_width:g} %, at most "
            f"{counted(settings.repeats, 'time')}: costs are upper bounds"
        )
    return notes
