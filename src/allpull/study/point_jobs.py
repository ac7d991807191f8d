"""The job of one point: of a recipe, of a user's command, or on a virtual cluster, with its parameters applied."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from allpull.config.load import load_spec
from allpull.config.typed import show
from allpull.errors import BadInput
from allpull.schema.spec import RunSpec, to_plain
from allpull.schema.studied import Parameters, Value
from allpull.study.file import RESERVED_VARIABLES, StudyFile
from allpull.study.parameters import CLUSTER_SHORT, filled, ignores_steps, option_of, placeholders, text_of

DEFAULT_STEPS = 60  # of a rehearsal, as `allpull rehearse`


@dataclass(frozen=True, slots=True, kw_only=True)
class PointJob:
    """The job of one point.

    ``kind`` and ``options`` are what the process of a job takes (``allpull.jobs``), ``configuration`` is all that
    decides what is measured, ``defaults`` are the values of parameters that the point does not set, ``command`` is
    what a user would type. ``spec`` is that of a training of allpull's own, else None.
    """

    kind: Literal["train", "run", "rehearse"]
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    ranks: int
    hosts: int
    configuration: Mapping[str, Any]
    defaults: Parameters
    command: Sequence[str]
    spec: RunSpec | None = None


def point_job(study: StudyFile, parameters: Parameters) -> PointJob:
    """The job that measures the point with ``parameters``.

    Raises:
        BadInput: it cannot be run with them.
    """
    makers = {"recipe": _training, "command": _command, "cluster": _rehearsal}
    return makers[study.source](study, parameters)


def _training(study: StudyFile, parameters: Parameters) -> PointJob:
    settings = study.settings
    fixed = [*study.run.set, f"observe.warmup_steps={settings.warmup_steps}"]
    fixed += [f"train.stop_after={settings.steps}"] if settings.steps else []
    fixed += [f"train.global_batch={settings.global_batch}"] if settings.scaling == "strong" else []
    data = str(parameters.get("data") or parameters.get("data.name") or load_spec(study.run.recipe, fixed).data.name)
    sets = [*fixed]
    for name, value in parameters.items():
        if name not in ("ranks", "launcher") and not name.startswith("env."):
            option = option_of(name, data)
            sets.append(f"{option}={_written(option, value)}")
    ranks, launcher = _ranks(parameters), _launcher(study, parameters)
    own = [] if ranks is None else [f"launch.ranks={ranks}"]
    spec = load_spec(study.run.recipe, [*sets, *own, f"launch.launcher={json.dumps(launcher)}"])
    plain = to_plain(spec)
    environment = _environment(study, parameters, spec.launch.ranks, spec.launch.hosts)
    differing = _differences(plain, to_plain(RunSpec()))
    differing.pop("name", None)
    command = ["allpull", "train", study.run.recipe, "-n", str(spec.launch.ranks)]
    command += ["--launcher", launcher] if launcher != "auto" else []
    return PointJob(
        kind="train",
        options={
            "recipe": study.run.recipe,
            "ranks": spec.launch.ranks,
            "launcher": launcher,
            "resume": None,
            "sets": [*sets, f"name={json.dumps(settings.name)}"],
        },
        environment=environment,
        ranks=spec.launch.ranks,
        hosts=spec.launch.hosts,
        configuration={"train": differing, "environment": environment},
        defaults=_defaults(study, plain, lambda name: option_of(name, data)),
        command=[*_variables(environment), *command, *(word for text in sets for word in ("--set", text))],
        spec=spec,
    )


def _command(study: StudyFile, parameters: Parameters) -> PointJob:
    settings, ranks = study.settings, _ranks(parameters) or 1
    hosts, launcher = _whole(parameters.get("hosts", 1), "hosts"), _launcher(study, parameters)
    values = {**_built_in(study, ranks, hosts), **parameters}
    words = [filled(word, values) for word in study.run.command]
    sets = [*study.run.set, f"observe.warmup_steps={settings.warmup_steps}"]
    if ignores_steps(study):
        sets.append(f"watch.last_step={settings.steps}")
    sets += [f"launch.{name}={parameters[name]}" for name in ("hosts", "threads") if name in parameters]
    environment = _environment(study, parameters, ranks, hosts)
    shown = ["allpull", "run", "-n", str(ranks), *(["--launcher", launcher] if launcher != "auto" else [])]
    shown += [word for text in sets for word in ("--set", text)]
    return PointJob(
        kind="run",
        options={"command": words, "ranks": ranks, "launcher": launcher, "name": settings.name, "sets": sets},
        environment=environment,
        ranks=ranks,
        hosts=hosts,
        configuration={
            "run": words,
            "ranks": ranks,
            "launcher": launcher,
            "sets": sorted(sets),
            "environment": environment,
        },
        defaults={"hosts": 1, "launcher": launcher, "threads": 1},
        command=[*_variables(environment), *shown, "--", *words],
    )


def _rehearsal(study: StudyFile, parameters: Parameters) -> PointJob:
    settings = study.settings
    table = copy.deepcopy(dict(cast("Mapping[str, Any]", study.cluster_table)))
    for name, value in parameters.items():
        if name not in ("ranks", "hosts", "launcher", "threads") and not name.startswith("env."):
            _put(table, CLUSTER_SHORT.get(name, name), value)
    own = table.setdefault("cluster", {})
    if "hosts" in parameters:
        own["hosts"] = _whole(parameters["hosts"], "hosts")
    ranks = _ranks(parameters)
    if ranks is not None:
        _share_out(own, ranks, has_hosts="hosts" in parameters or "cluster.hosts" in parameters)
    hosts, per_host = own.get("hosts", 1), own.get("ranks_per_host", 1)
    if settings.scaling == "strong":
        _put(table, "accelerator.batch", _rank_batch(settings.global_batch, hosts * per_host))
    environment = _environment(study, parameters, hosts * per_host, hosts)
    steps = settings.steps or DEFAULT_STEPS
    return PointJob(
        kind="rehearse",
        options={"steps": steps},
        environment=environment,
        ranks=hosts * per_host,
        hosts=hosts,
        configuration={"cluster": table, "steps": steps, "environment": environment},
        defaults={
            "ranks": hosts * per_host,
            "hosts": hosts,
            **_defaults(study, table, lambda name: CLUSTER_SHORT.get(name, name)),
        },
        command=["--steps", str(steps)],
    )


def _share_out(cluster: dict[str, Any], ranks: int, *, has_hosts: bool) -> None:
    """Give ``cluster`` as many ranks: on its hosts where they are set, else on hosts of its usual size.

    Raises:
        BadInput: they cannot be divided evenly.
    """
    per_host = cluster.get("ranks_per_host", 1)
    hosts = cluster.get("hosts", 1) if has_hosts else max(1, ranks // per_host)
    if ranks % hosts or ranks < hosts:
        raise BadInput(f"{ranks} ranks cannot be divided evenly over {hosts} hosts")
    cluster["hosts"], cluster["ranks_per_host"] = hosts, ranks // hosts


def _built_in(study: StudyFile, ranks: int, hosts: int) -> dict[str, Any]:
    """Placeholders that every command may use."""
    settings = study.settings
    values: dict[str, Any] = {"ranks": ranks, "hosts": hosts, "threads": 1}
    if settings.steps:
        values["steps"] = settings.steps
    if settings.scaling == "strong":
        values["global_batch"] = settings.global_batch
        if study.source == "command":
            uses = {name for word in study.run.command for name in placeholders(word)}
            values["rank_batch"] = _rank_batch(settings.global_batch, ranks) if "rank_batch" in uses else None
    return values


def _rank_batch(global_batch: int, ranks: int) -> int:
    if global_batch % ranks:
        raise BadInput(f"global_batch = {global_batch} cannot be divided evenly among {ranks} ranks")
    return global_batch // ranks


def _environment(study: StudyFile, parameters: Parameters, ranks: int, hosts: int) -> dict[str, str]:
    """Environment variables of the job of a point."""
    values = {**_built_in(study, ranks, hosts), **parameters}
    own = {name: filled(text, values) for name, text in study.environment.items()}
    own |= {name[4:]: text_of(value) for name, value in parameters.items() if name.startswith("env.")}
    return {name: own[name] for name in sorted(own) if name not in RESERVED_VARIABLES}


def _written(option: str, value: Value) -> str:
    """``value`` as an override has it; several bucket sizes may be one text: '1,25'.

    >>> _written("parallel.bucket_mb", "1,25"), _written("train.lr", 0.1), _written("model.name", "resnet18")
    ('[1,25]', '0.1', '"resnet18"')
    """
    if option == "parallel.bucket_mb" and isinstance(value, str):
        return f"[{value}]"
    return json.dumps(value)


def _ranks(parameters: Parameters) -> int | None:
    return _whole(parameters["ranks"], "ranks") if "ranks" in parameters else None


def _whole(value: Value, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name}: expected a whole number, at least 1; found {show(value)}")
    return value


def _launcher(study: StudyFile, parameters: Parameters) -> str:
    return str(parameters.get("launcher", study.settings.launcher))


def _defaults(study: StudyFile, plain: Mapping[str, Any], path_of: Callable[[str], str]) -> Parameters:
    """The values in ``plain`` of all parameters that some point of ``study`` sets."""
    values = {name: _leaf(plain, path_of(name)) for matrix in study.matrices for name in matrix.names}
    return {name: value for name, value in values.items() if value is not None}


def _leaf(plain: Mapping[str, Any], path: str) -> Value | None:
    """The value at a dotted path; None where there is none, or a table. A list becomes one text."""
    value: Any = plain
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, bool | int | float | str) else None


def _put(table: dict[str, Any], path: str, value: Value) -> None:
    """Set the value at a dotted path, where a number counts the tables of a list: ``faults.0.delay``.

    Raises:
        BadInput: there is no such table.
    """
    *names, last = path.split(".")
    inner: Any = table
    for name in names:
        if isinstance(inner, list) and name.isdecimal() and int(name) < len(inner):
            inner = inner[int(name)]
        elif isinstance(inner, dict):
            inner = inner.setdefault(name, {})
        else:
            raise BadInput(f"{path}: the cluster has no such table")
    if not isinstance(inner, dict):
        raise BadInput(f"{path}: the cluster has no such table")
    inner[last] = value


def _differences(plain: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults, so that a new option changes no id."""
    differing: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            inner = _differences(value, default[name])
            differing |= {name: inner} if inner else {}
        elif value != default[name]:
            differing[name] = value
    return differing


def _variables(environment: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []
