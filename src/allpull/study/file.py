"""Read a study file: what to run, along which axes, how often and within which limits; or every fault in it at once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from allpull.config.load import MAX_BYTES, parse_toml
from allpull.config.typed import build, find_faults, show, show_path, show_text
from allpull.errors import BadInput, ConfigError, UnknownName, nearest
from allpull.regular_file import regular
from allpull.schema.option import option
from allpull.schema.studied import Changed, Parameters
from allpull.study.overlay import MAX_SHOWN, SOURCES, TABLES, changes, merged, override
from allpull.study.settings import StudySettings
from allpull.units import parse_time_s

MAX_VALUES = 1000  # of one axis
RESERVED_VARIABLES = {"OMP_NUM_THREADS": "threads", "MKL_NUM_THREADS": "threads"}
"""Environment variables that allpull sets for every rank, each with the parameter that decides it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMMENT = re.compile(r"#+\s*(.*)")

Lists: TypeAlias = Mapping[str, Sequence[Any]]
"""Parameter → its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """``[run]``: what is run at every point, apart from its environment and an inline cluster."""

    recipe: str = option("", "a recipe of allpull's trainer: a name, or a TOML file")
    set: tuple[str, ...] = option((), "options of every run, such as train.epochs=3")
    command: tuple[str, ...] = option((), "script and its arguments, with {parameters}")
    cluster: str = option("", "cluster file, whose virtual accelerator is trained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The product of ``axes`` and ``zips``, the lists of each of which move together; ``label`` names it to readers."""

    axes: Lists = field(default_factory=dict)
    zips: Sequence[Lists] = ()
    label: str = ""

    @property
    def names(self) -> list[str]:
        """Its parameters."""
        return [*self.axes, *(name for lists in self.zips for name in lists)]

    @property
    def with_ranks(self) -> set[str]:
        """Parameters that move with the number of ranks, and so do not tell series apart."""
        return {name for lists in self.zips if "ranks" in lists for name in lists}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A study file, checked. ``plain`` is its content as resolved; ``folder`` is where the file is."""

    settings: StudySettings
    run: RunTable
    environment: Mapping[str, str]
    cluster_table: Mapping[str, Any] | None
    matrix: Matrix
    includes: Sequence[Matrix] = ()
    excludes: Sequence[Parameters] = ()
    published: Sequence[str] = ()
    tune: Mapping[str, Any] | None = None
    changed: Sequence[Changed] = ()
    plain: Mapping[str, Any]
    folder: Path

    @property
    def axes(self) -> Lists:
        """Those of ``[axes]``."""
        return self.matrix.axes

    @property
    def zips(self) -> Sequence[Lists]:
        """Each ``[[zip]]``."""
        return self.matrix.zips

    @property
    def matrices(self) -> Sequence[Matrix]:
        """The matrix of ``[axes]`` and ``[[zip]]``, if there is one, and those of each ``[[include]]``."""
        return [*([self.matrix] if self.matrix.names else []), *self.includes]

    @property
    def source(self) -> str:
        """Which of ``SOURCES`` is run."""
        return "cluster" if self.cluster_table is not None else "command" if self.run.command else "recipe"


def load_study(place: str, overrides: Sequence[str] = (), *, fit_here: bool = False) -> StudyFile:
    """The study of the shipped recipe or TOML file ``place``.

    ``fit_here`` lays its table ``[fit_here]`` over the others, so that it fits a small machine. ``overrides`` such as
    ``study.repeats=2`` come last; one that names no table of the file is an option of every run (``train.lr=0.1``).

    Raises:
        UnknownName: ``place`` is neither a shipped recipe nor a path.
        BadInput: the file cannot be read, or has nothing to lay over.
        ConfigError: with a line for every fault.
    """
    shown, text, folder = _read(place)
    full, faults = parse_toml(text)
    if faults:
        raise ConfigError(shown, faults, hint="correct each line; nothing was started")
    here = full.pop("fit_here", None)
    plain, changed = full, list[Changed]()
    if fit_here:
        if not isinstance(here, dict):
            raise BadInput(f"{shown} has no table [fit_here]", hint="leave --fit-here out, or add that table")
        plain = merged(full, here)
        changed = changes(full, plain)
    for text in overrides:
        override(plain, text, faults)
    study = _checked(plain, faults, folder, changed)
    if study is None:
        raise ConfigError(shown, faults, hint="correct each line; nothing was started")
    return study


def with_limit(study: StudyFile, limit: str) -> StudyFile:
    """``study`` with another limit of all runs together for one call; one run may have a longer ``timeout``.

    Raises:
        BadInput: ``limit`` is no time above 0.
    """
    if parse_time_s(limit) <= 0:
        raise BadInput(f"--limit {show_text(limit)}: expected a time above 0", hint="such as --limit 4h")
    return replace(study, settings=replace(study.settings, limit=limit))


def recipes() -> dict[str, str]:
    """Names of the shipped studies, sorted, each with its description, its first comment line."""
    titles = {}
    for item in resources.files("allpull.study").joinpath("recipes").iterdir():
        if item.name.endswith(".toml"):
            lines = item.read_text(encoding="utf-8").splitlines()
            comment = _COMMENT.match(lines[0]) if lines else None
            titles[item.name.removesuffix(".toml")] = comment.group(1) if comment else ""
    return dict(sorted(titles.items()))


def _read(place: str) -> tuple[str, str, Path]:
    """The study's name for messages, its text, and the folder of the file."""
    known = recipes()
    if place in known:
        shipped = resources.files("allpull.study").joinpath("recipes", f"{place}.toml")
        return f"study '{place}'", shipped.read_text(encoding="utf-8"), Path()
    shown, path = show_text(place, MAX_SHOWN), Path(place)
    if not ("/" in place or place.endswith(".toml") or path.is_file()):
        raise UnknownName("study", shown, known, hint="or give the path of a file that ends in .toml")
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "it is not UTF-8 text").lower()
        raise BadInput(f"cannot read '{shown}': {reason}", hint=f"shipped studies: {', '.join(known)}") from error
    if len(content) > MAX_BYTES:
        raise BadInput(f"'{shown}' is larger than 1 MiB: not a study", hint="a study is a page of TOML")
    return shown, text, path.parent


def _checked(plain: dict[str, Any], faults: list[str], folder: Path, changed: list[Changed]) -> StudyFile | None:
    """The study that ``plain`` describes; None if it has faults, which are then added to ``faults``."""
    for name in plain:
        if name not in TABLES:
            close = nearest(name, TABLES)
            faults.append(f"{show_path((name,))}: no such table; " + (f"did you mean '{close}'?" if close else KNOWN))
    tables = {name: _as_table(plain, name, faults) for name in ("study", "run", "axes", "published", "tune")}
    settings = _settings(tables["study"], faults)
    run = {name: value for name, value in tables["run"].items() if name not in ("env", "cluster_table")}
    faults += [f"run.{line}" for line in find_faults(RunTable, run)]
    given = [name for name in SOURCES if tables["run"].get(name)]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        faults.append(f"run: expected exactly one of {', '.join(SOURCES)}; found {found}")
    axes = _lists(tables["axes"], "axes", faults)
    zips = [_zipped(item, where, faults) for where, item in _entries(plain, "zip", faults)]
    matrix = Matrix(axes=axes, zips=zips)
    includes = [_included(item, where, faults) for where, item in _entries(plain, "include", faults)]
    excludes = [_parameters(item, where, faults) for where, item in _entries(plain, "exclude", faults)]
    faults += [f"axes.{name}: also in a [[zip]]; a parameter belongs to one axis" for name in _twice(matrix)]
    environment = _environment(tables["run"].get("env", {}), faults)
    published = tables["published"].get("series", [])
    if not isinstance(published, list) or not all(isinstance(name, str) for name in published):
        faults.append(f"published.series: expected a list of names; found {show(published)}")
    faults += [f"published.{name}: no such option; known: series" for name in tables["published"] if name != "series"]
    if faults or settings is None:
        return None
    cluster = tables["run"].get("cluster_table")
    if "cluster" in given:
        cluster, plain = _with_cluster(plain, folder / run["cluster"])
    return StudyFile(
        settings=settings,
        run=build(RunTable, run, "run"),
        environment=environment,
        cluster_table=cluster,
        matrix=matrix,
        includes=includes,
        excludes=excludes,
        published=published,
        tune=tables["tune"] or None,
        changed=changed,
        plain=plain,
        folder=folder,
    )


KNOWN = f"known: {', '.join(TABLES)}"


def _with_cluster(plain: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of the cluster file at ``path``, and ``plain`` with it in place of its name.

    Raises:
        BadInput: it cannot be read.
        ConfigError: it is not TOML.
    """
    from allpull.rehearse.cluster.file import load_cluster  # noqa: PLC0415  few studies rehearse

    load_cluster(path)  # reports every fault
    table, _ = parse_toml(path.read_text(encoding="utf-8-sig"))
    accelerator = table.get("accelerator", {})
    if accelerator.get("layers"):
        accelerator["layers"] = str((path.parent / accelerator["layers"]).resolve())
    run = {name: value for name, value in plain["run"].items() if name != "cluster"}
    return table, {**plain, "run": {**run, "cluster_table": table}}


def _settings(plain: dict[str, Any], faults: list[str]) -> StudySettings | None:
    """``[study]``, with its contradictions."""
    own = [f"study.{line}" for line in find_faults(StudySettings, plain)]
    faults += own
    if own:
        return None
    settings = build(StudySettings, plain, "study")
    if not _NAME.fullmatch(settings.name):
        faults.append(
            f"study.name: expected letters, digits, '.', '_' and '-', for a directory; found {show(settings.name)}"
        )
    times: dict[str, float] = {}
    for name in ("timeout", "limit"):
        text = getattr(settings, name)
        try:
            times[name] = parse_time_s(text) if text else math.inf
        except BadInput as error:
            faults.append(f"study.{name}: {error.message}")
            return None
        if times[name] <= 0:
            faults.append(f"study.{name}: expected a time above 0; found {show(text)}")
    if math.inf > times["timeout"] > times["limit"]:
        faults.append(
            f"study.timeout = '{settings.timeout}' of one run is longer than limit = '{settings.limit}' of all"
        )
    if settings.scaling == "strong" and not settings.global_batch:
        faults.append("study.scaling = 'strong' needs study.global_batch, the samples per step on all ranks together")
    if settings.global_batch and settings.scaling != "strong":
        faults.append("study.global_batch has an effect only with study.scaling = 'strong'")
    if settings.steps and settings.steps <= settings.warmup_steps:
        faults.append(f"study.steps = {settings.steps} leaves none after warmup_steps = {settings.warmup_steps}")
    if settings.half_width and settings.repeats < 2:
        faults.append("study.half_width needs study.repeats of at least 2, the most runs of a point")
    return settings


def _as_table(plain: Mapping[str, Any], name: str, faults: list[str]) -> dict[str, Any]:
    value = plain.get(name, {})
    if isinstance(value, dict):
        return value
    faults.append(f"{name}: expected a table; found {show(value)}")
    return {}


def _entries(plain: Mapping[str, Any], name: str, faults: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Path and content of each ``[[name]]`` table."""
    entries = plain.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
        faults.append(f"{name}: expected tables, each under [[{name}]]; found {show(entries)}")
        return []
    return [(f"{name}[{index}]", item) for index, item in enumerate(entries)]


def _lists(table: Mapping[str, Any], where: str, faults: list[str]) -> dict[str, list[Any]]:
    """Lists of values by parameter; a nested table is one of dotted names: ``[axes.env]``."""
    lists: dict[str, list[Any]] = {}
    for name, values in table.items():
        path = f"{where}.{name}"
        if isinstance(values, dict):
            lists |= {f"{name}.{inner}": value for inner, value in _lists(values, path, faults).items()}
        elif not isinstance(values, list) or not 1 <= len(values) <= MAX_VALUES:
            given = "an empty list" if values == [] else show(values)
            faults.append(f"{path}: expected a list of 1 to {MAX_VALUES:,} values; found {given}")
        elif not all(_is_value(value) for value in values):
            faults.append(f"{path}: expected numbers, texts or true and false")
        elif len({repr(value) for value in values}) < len(values) and where == "axes":
            faults.append(f"{path}: a value stands there twice; study.repeats says how often a point is run")
        else:
            lists[name] = values
    return lists


def _zipped(table: Mapping[str, Any], where: str, faults: list[str]) -> dict[str, list[Any]]:
    lists = _lists(table, where, faults)
    if len({len(values) for values in lists.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in lists.items())
        faults.append(f"{where}: its lists move together and need the same length; {sizes}")
    return lists


def _included(table: Mapping[str, Any], where: str, faults: list[str]) -> Matrix:
    """The matrix of an ``[[include]]``: each parameter has one value, or a list of them; ``zip`` is a table."""
    own = {name: value for name, value in table.items() if name not in ("zip", "label")}
    label, lists = table.get("label", ""), _as_table(table, "zip", faults)
    if not isinstance(label, str):
        faults.append(f"{where}.label: expected a text; found {show(label)}")
        label = ""
    zips = [_zipped(lists, f"{where}.zip", faults)] if lists else []
    matrix = Matrix(axes=_lists(_listed(own), where, faults), zips=zips, label=label)
    faults += [f"{where}.{name}: also in its zip; a parameter belongs to one axis" for name in _twice(matrix)]
    return matrix


def _listed(table: Mapping[str, Any]) -> dict[str, Any]:
    """``table`` with a list of one in place of each single value."""
    return {
        name: _listed(value) if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for name, value in table.items()
    }


def _twice(matrix: Matrix) -> list[str]:
    return [name for name in matrix.axes if any(name in lists for lists in matrix.zips)]


def _parameters(table: Mapping[str, Any], where: str, faults: list[str]) -> Parameters:
    values: Parameters = {}
    for name, value in table.items():
        if isinstance(value, dict):
            inner = _parameters(value, f"{where}.{name}", faults)
            values |= {f"{name}.{key}": item for key, item in inner.items()}
        elif _is_value(value):
            values[name] = value
        else:
            faults.append(f"{where}.{name}: expected a number, a text, or true or false; found {show(value)}")
    return values


def _environment(table: object, faults: list[str]) -> dict[str, str]:
    if not isinstance(table, dict) or not all(_is_value(value) for value in table.values()):
        faults.append("run.env: expected a table of texts")
        return {}
    return {name: value if isinstance(value, str) else show(value) for name, value in table.items()}


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
