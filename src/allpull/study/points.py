"""From a study file to its points: the product of all axes, what is included and excluded, each with its job."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allpull.config.typed import show
from allpull.errors import BadInput, ConfigError
from allpull.rundir import redact
from allpull.schema.studied import Parameters
from allpull.study.file import Matrix, StudyFile
from allpull.study.parameters import check_names
from allpull.study.point_jobs import PointJob, point_job

PLACE = ("ranks", "hosts", "launcher")
"""Parameters that say where a point runs and how large it is; points that differ in them alone are one series."""

ID_CHARACTERS = 12
MAX_POINTS = 10_000
MAX_COMBINATIONS = 10 * MAX_POINTS  # before [[exclude]]
MAX_FAULTS = 20  # of points, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting of all parameters; ``series`` are those that its series has in common.

    ``labels`` are those of every ``[[include]]`` that makes it.
    """

    id: str
    parameters: Parameters
    series: Parameters
    labels: tuple[str, ...]
    job: PointJob


def points_of(study: StudyFile) -> list[Point]:
    """Every point of ``study``, by series and ranks as its axes list them.

    Raises:
        ConfigError: no point is left, or points cannot be run; a line for every fault.
    """
    faults = check_names(study)
    if faults:
        raise ConfigError(f"study '{study.settings.name}'", faults, hint="correct each line; nothing was started")
    count = sum(_count(matrix) for matrix in study.matrices)
    if count > MAX_COMBINATIONS:
        fault = f"{count:,} combinations; at most {MAX_COMBINATIONS:,} are looked at: use [[zip]] or shorter lists"
        raise ConfigError(f"study '{study.settings.name}'", [fault], hint="nothing was started")
    combinations = [(matrix, parameters) for matrix in study.matrices for parameters in _combinations(matrix)]
    kept = [one for one in combinations if not any(_matches(one[1], out) for out in study.excludes)]
    jobs: list[tuple[Matrix, Parameters, PointJob]] = []
    for matrix, parameters in kept if len(kept) <= MAX_POINTS else ():
        try:
            jobs.append((matrix, parameters, point_job(study, parameters)))
        except BadInput as error:
            lines = error.faults if isinstance(error, ConfigError) else (error.message,)
            faults += [f"point {show_parameters(parameters)}: {line}" for line in lines]
    faults = list(dict.fromkeys(faults))
    if not combinations:
        faults.append("no point: give [axes], [[zip]] or [[include]]")
    elif not kept:
        faults.append(f"no point is left: [[exclude]] removes all {len(combinations)}")
    elif len(kept) > MAX_POINTS:
        faults.append(f"{len(kept):,} points; at most {MAX_POINTS:,} are run: use [[zip]] or [[exclude]]")
    if faults:
        more = [f"and {len(faults) - MAX_FAULTS:,} more"] if len(faults) > MAX_FAULTS else []
        raise ConfigError(f"study '{study.settings.name}'", [*faults[:MAX_FAULTS], *more], hint="nothing was started")
    names = dict.fromkeys(name for _, parameters, _ in jobs for name in parameters)
    points: dict[str, Point] = {}
    for matrix, parameters, job in jobs:
        point = _point(parameters, job, names, study.matrix.with_ranks | matrix.with_ranks)
        known = points.setdefault(point.id, point)
        if matrix.label and matrix.label not in known.labels:
            points[point.id] = replace(known, labels=(*known.labels, matrix.label))
    return list(points.values())


def unused_excludes(study: StudyFile) -> list[Parameters]:
    """Each ``[[exclude]]`` of ``study`` that matches no combination: a slip, as a rule."""
    combinations = [parameters for matrix in study.matrices for parameters in _combinations(matrix)]
    return [out for out in study.excludes if not any(_matches(one, out) for one in combinations)]


def show_parameters(parameters: Mapping[str, Any]) -> str:
    """Parameters on one line.

    >>> show_parameters({"ranks": 2, "precision": "bf16"})
    'ranks=2 precision=bf16'
    """
    return (
        " ".join(f"{name}={value if isinstance(value, str) else show(value)}" for name, value in parameters.items())
        or "(no parameter)"
    )


def _combinations(matrix: Matrix) -> Iterator[Parameters]:
    """The product of all axes; a ``[[zip]]`` is one axis."""
    axes: list[list[Parameters]] = [[{name: value} for value in values] for name, values in matrix.axes.items()]
    axes += [
        [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)] for lists in matrix.zips
    ]
    for parts in itertools.product(*axes):
        yield {name: value for part in parts for name, value in part.items()}


def _count(matrix: Matrix) -> int:
    """How many combinations ``_combinations`` makes."""
    lengths = [len(values) for values in matrix.axes.values()]
    return math.prod([*lengths, *(len(next(iter(lists.values()), ())) for lists in matrix.zips)])


def _matches(parameters: Parameters, pattern: Parameters) -> bool:
    return all(name in parameters and parameters[name] == value for name, value in pattern.items())


def _point(parameters: Parameters, job: PointJob, names: Mapping[str, None], with_ranks: set[str]) -> Point:
    """The point of ``job``; every parameter of ``names`` that it does not set has its default, where there is one."""
    own: Parameters = {}
    for name in names:
        if name in parameters:
            own[name] = parameters[name]
        elif name in job.defaults:
            own[name] = job.defaults[name]
    masked, secrets = redact.tree(job.configuration)  # whoever sees the id could try secrets out
    text = json.dumps([masked, own] if secrets else masked, sort_keys=True)  # points may differ in what is masked
    return Point(
        id=hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS],
        parameters=own,
        series={name: value for name, value in own.items() if name not in PLACE and name not in with_ranks},
        labels=(),
        job=job,
    )
