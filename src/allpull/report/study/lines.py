"""What a study compares: series over ranks, and lines over each parameter that was varied with all others fixed."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from allpull.analyse.scaling import kind
from allpull.report.printable import short
from allpull.schema.results import Scaling
from allpull.schema.studied import PublishedSeries, StudyPoint, StudyResult, Value
from allpull.study.results import by_series, series_label
from allpull.units import counted

LABEL_CHARACTERS = 40
VALUE_CHARACTERS = 24
SELF_EXPLAINING = {"precision", "model", "backend", "data", "launcher", "hook", "compression"}
"""Parameters whose values need no name beside them."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The points that differ in ranks and hosts alone, by ranks; ``scaling`` is None where it is not known."""

    name: str
    points: Sequence[StudyPoint]
    scaling: Scaling | None

    @property
    def is_scaled(self) -> bool:
        """Whether it has several sizes."""
        return len({point.ranks for point in self.points}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLine:
    """The points of one line of an axis, by the value of its parameter."""

    name: str
    ranks: int
    points: Sequence[tuple[Value, StudyPoint]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A parameter that was varied with all others fixed; ``with_it`` are those that move together with it."""

    parameter: str
    with_it: Sequence[str]
    is_numeric: bool
    lines: Sequence[AxisLine]


def plain_name(parameter: str) -> str:
    """A parameter without the section of the specification that it is in.

    >>> plain_name("train.batch"), plain_name("env.OMP_NUM_THREADS"), plain_name("workers")
    ('batch', 'OMP_NUM_THREADS', 'workers')
    """
    return short(parameter.rpartition(".")[2] or parameter, VALUE_CHARACTERS)


def plain_value(value: Value | None) -> str:
    """A value of a parameter as text.

    >>> plain_value(True), plain_value(0.1), plain_value(2048), plain_value(None)
    ('on', '0.1', '2,048', 'not set')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else short(f"{value:g}" if isinstance(value, float) else value, 24)


def setting(parameter: str, value: Value | None) -> str:
    """A parameter and its value as part of a label.

    >>> setting("train.batch", 64), setting("train.precision", "fp32"), setting("hosts", 2), setting("compile", False)
    ('batch 64', 'fp32', '2 hosts', 'compile off')
    """
    if parameter in {"ranks", "hosts", "threads"} and isinstance(value, int):
        return counted(value, parameter.removesuffix("s"))
    name = plain_name(parameter)
    return plain_value(value) if name in SELF_EXPLAINING and value is not None else f"{name} {plain_value(value)}"


def series(study: StudyResult) -> list[Series]:
    """The series of a study in the order of their first points, each with a name of its own."""
    groups = by_series(study.points)
    parts = [series_label(group) for group in groups]
    names = []
    for part, group in zip(parts, groups, strict=True):
        varied = _varied([other[0].series for other, its in zip(groups, parts, strict=True) if its == part])
        names.append(", ".join(filter(None, [part, label(group[0].series, varied)])))
    return [
        Series(name=name, points=group, scaling=_scaling(study, group))
        for name, group in zip(
            distinct([_how(study, short(name, LABEL_CHARACTERS)) for name in names]), groups, strict=True
        )
    ]


def _how(study: StudyResult, name: str) -> str:
    """The name of a line that was measured; one that was rehearsed says so, wherever the figure is shown."""
    measured = sum(point.throughput is not None for point in study.points)
    if not measured or study.rehearsed < measured:
        return name or "measured"
    return f"{name} (rehearsed)" if name else "rehearsed"


def axes(study: StudyResult) -> list[Axis]:
    """Each parameter that has several values at otherwise equal settings.

    Parameters that always move together (a zip) are one axis. Those that follow from an axis alone are not fixed
    along it, and are named by it.
    """
    settings = [{**point.parameters, "ranks": point.ranks, "hosts": point.hosts} for point in study.points]
    names = list(dict.fromkeys(name for one in settings for name in one))
    values = {name: [json.dumps(one.get(name)) for one in settings] for name in names}
    varied = [name for name in names if len(set(values[name])) > 1]
    made = []
    covered: set[str] = {"ranks"} | {name for name in varied if _decides(values[name], values["ranks"], both=True)}
    for name in varied:
        if name in covered:
            continue
        twins = [one for one in varied if one not in {name, "ranks"} and _decides(values[name], values[one], both=True)]
        follow = [one for one in varied if one not in {name, "ranks", *twins} and _decides(values[name], values[one])]
        covered |= {name, *twins}
        fixed = [one for one in varied if one not in {name, *twins, *follow}]
        lines = _axis_lines(study, settings, name, fixed)
        if lines:
            is_numeric = all(_is_number(value) for line in lines for value, _ in line.points)
            made.append(Axis(parameter=name, with_it=[*twins, *follow], is_numeric=is_numeric, lines=lines))
    return made


def published_name(one: PublishedSeries) -> str:
    """The name of a published series in a legend."""
    return short(f"{one.series} (published)", LABEL_CHARACTERS)


def label(parameters: Mapping[str, Value], varied: Iterable[str]) -> str:
    """``parameters``, those that are ``varied``, as a short name."""
    return short(", ".join(setting(name, parameters.get(name)) for name in varied), LABEL_CHARACTERS)


def distinct(names: Sequence[str]) -> list[str]:
    """``names``, those that occur again with a number.

    >>> distinct(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    made: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in made:
            number += 1
            unique = f"{name} ({number})"
        made.append(unique)
    return made


def _axis_lines(
    study: StudyResult, settings: Sequence[Mapping[str, Value]], name: str, fixed: Sequence[str]
) -> list[AxisLine]:
    """The lines over parameter ``name``: groups of several of its values in which ``fixed`` are equal.

    ``settings`` are those of each point of ``study``.
    """
    points = list(zip(study.points, settings, strict=True))
    lines: list[tuple[Mapping[str, Value], list[tuple[Value, StudyPoint]]]] = []
    for group in _grouped(points, lambda pair: _key({one: pair[1].get(one) for one in fixed})).values():
        by_value = {json.dumps(own[name]): (own[name], point) for point, own in group if name in own}
        if len(by_value) > 1:
            lines.append((group[0][1], list(by_value.values())))
    shown = _varied([own for own, _ in lines], fixed)
    names = distinct([_how(study, label(own, shown)) for own, _ in lines])
    return [
        AxisLine(name=one, ranks=known[0][1].ranks, points=sorted(known, key=_place))
        for one, (_, known) in zip(names, lines, strict=True)
    ]


def _place(pair: tuple[Value, StudyPoint]) -> float:
    """Numbers are in order; names stay in that of the study."""
    return float(pair[0]) if _is_number(pair[0]) else 0.0


def _scaling(study: StudyResult, points: Sequence[StudyPoint]) -> Scaling | None:
    metrics = [next((run.metrics for run in point.runs if run.metrics is not None), None) for point in points]
    measured = kind([one for one in metrics if one is not None])
    return measured if measured in {"weak", "strong"} else study.scaling or measured


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _decides(one: Sequence[str], other: Sequence[str], *, both: bool = False) -> bool:
    """Whether equal values of ``one`` always come with equal values of ``other`` (and the other way round)."""
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) and (not both or len(pairs) == len(set(other)))


def _varied(settings: Sequence[Mapping[str, Value]], names: Sequence[str] | None = None) -> list[str]:
    known = list(dict.fromkeys(name for one in settings for name in one)) if names is None else names
    return [name for name in known if len({json.dumps(one.get(name)) for one in settings}) > 1]


def _key(parameters: Mapping[str, Value | None]) -> str:
    return json.dumps(dict(parameters), sort_keys=True)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
