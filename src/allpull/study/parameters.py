"""The parameters that a study may have: short names, options, keys of a cluster file, placeholders of a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from allpull.config.typed import options, show, type_at
from allpull.errors import BadInput, nearest
from allpull.rehearse.cluster.model import AcceleratorTable, ClusterTable
from allpull.schema.spec import RunSpec
from allpull.study.file import RESERVED_VARIABLES, StudyFile

LAUNCH = {"ranks": "launch.ranks", "hosts": "launch.hosts", "launcher": "launch.launcher", "threads": "launch.threads"}
"""Parameters of every study, and the option that each sets."""

SHORT = {
    "batch": "train.batch",
    "precision": "train.precision",
    "compile": "train.compile",
    "buckets": "parallel.bucket_mb",
    "backend": "parallel.backend",
    "hook": "parallel.compression",
    "model": "model.name",
    "data": "data.name",
    **LAUNCH,
}
"""Short names of a recipe's options; ``workers`` depends on the data set."""

CLUSTER_SHORT = {"batch": "accelerator.batch", "model": "accelerator.model", "buckets": "accelerator.bucket_mib"}
CLUSTER_TABLES = {"cluster": ClusterTable, "accelerator": AcceleratorTable}
FREE_TABLES = ("switch", "host", "faults")
"""Tables of a cluster file whose entries are counted: ``faults.0.delay``."""

BUILT_IN = ("ranks", "hosts", "threads", "steps", "global_batch", "rank_batch")
"""Placeholders that no axis needs to set: steps where the study has them, the last two with scaling = strong."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_ESCAPED = {"{{": "\0", "}}": "\1"}


def check_names(study: StudyFile) -> list[str]:
    """A line for every parameter that the study cannot have, and every placeholder that no axis sets."""
    places = [("axes", name) for name in study.axes]
    places += [(f"zip[{index}]", name) for index, lists in enumerate(study.zips) for name in lists]
    places += [(f"include[{index}]", name) for index, matrix in enumerate(study.includes) for name in matrix.names]
    places += [(f"exclude[{index}]", name) for index, table in enumerate(study.excludes) for name in table]
    faults = [f"{where}.{name}: {fault}" for where, name in places if (fault := _name_fault(study, name))]
    if study.settings.scaling == "strong":
        faults += [
            f"{where}.{name}: with scaling = 'strong' the batch of a rank is global_batch ÷ ranks"
            for where, name in places
            if SHORT.get(name, name) in ("train.batch", "train.global_batch") and study.source != "command"
        ]
    texts = [*study.run.command, *study.environment.values()]
    known = {*_built_in(study), *(name for _, name in places)}
    for name in dict.fromkeys(name for text in texts for name in placeholders(text)):
        if name not in known:
            close = nearest(name, known)
            hint = f"; did you mean '{{{close}}}'?" if close else "; write {{ and }} for braces of your own"
            faults.append(f"run: no axis sets the placeholder {{{name}}}{hint}")
    return faults


def _built_in(study: StudyFile) -> list[str]:
    """Those of ``BUILT_IN`` that this study has."""
    missing = [] if study.settings.steps else ["steps"]
    missing += [] if study.settings.scaling == "strong" else ["global_batch", "rank_batch"]
    return [name for name in BUILT_IN if name not in missing]


def _name_fault(study: StudyFile, name: str) -> str | None:
    """Why ``name`` is no parameter here; None where it is one."""
    if name.startswith("env."):
        reserved = RESERVED_VARIABLES.get(name.removeprefix("env."))
        return f"allpull sets it for every rank: use the parameter '{reserved}'" if reserved else None
    if name in LAUNCH:
        return None
    return {"recipe": _option_fault, "command": _placeholder_fault, "cluster": _cluster_fault}[study.source](
        study, name
    )


def _placeholder_fault(study: StudyFile, name: str) -> str | None:
    texts = (*study.run.command, *study.environment.values())
    known = {used for text in texts for used in placeholders(text)}
    if name in known:
        return None
    close = nearest(name, [*known, *LAUNCH])
    hint = f"did you mean '{close}'?" if close else f"it has {_listed(known)}; parameters of every study: {SETTABLE}"
    return f"the command has no placeholder {{{name}}}; {hint}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names)) or "none"


SETTABLE = ", ".join([*LAUNCH, "env.NAME"])


def _cluster_fault(_: StudyFile, name: str) -> str | None:
    path = CLUSTER_SHORT.get(name, name).split(".")
    table = CLUSTER_TABLES.get(path[0])
    if len(path) > 1 and (path[0] in FREE_TABLES or (table and path[1] in {item.name for item in fields(table)})):
        return None
    known = [f"{table}.{item.name}" for table, kind in CLUSTER_TABLES.items() for item in fields(kind)]
    return f"no such parameter{_suggestion(name, [*CLUSTER_SHORT, *LAUNCH, *known])}"


def _option_fault(_: StudyFile, name: str) -> str | None:
    kind = type_at(RunSpec, tuple(option_of(name).split(".")))
    if kind is not None and not is_dataclass(kind):
        return None
    return f"no such parameter{_suggestion(name, [*SHORT, 'workers', *(path for path, _ in options(RunSpec))])}"


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known)
    return (
        f"; did you mean '{close}'?"
        if close
        else "; known: an option such as train.lr, env.NAME, "
        + ", ".join(sorted(one for one in known if "." not in one))
    )


def option_of(name: str, data: str = "") -> str:
    """The option of a recipe that the parameter ``name`` sets, where its data set is ``data``."""
    if name == "workers":
        own = type_at(RunSpec, ("data", "workers")) is not None and data != "pack"
        return "data.workers" if own else "data.threads"
    return SHORT.get(name, name)


def ignores_steps(study: StudyFile) -> bool:
    """Whether ``study`` runs a command that does not know of the steps of the study, and would go on after them."""
    texts = (*study.run.command, *study.environment.values())
    uses = {name for text in texts for name in placeholders(text)}
    return study.source == "command" and bool(study.settings.steps) and "steps" not in uses


def placeholders(text: str) -> Iterator[str]:
    """The names of the placeholders in ``text``."""
    for doubled, mark in _ESCAPED.items():
        text = text.replace(doubled, mark)
    return (match.group(1) for match in _PLACEHOLDER.finditer(text))


def filled(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with its placeholders filled; doubled braces become single ones.

    >>> filled("--batch={batch} {{x}}", {"batch": 8})
    '--batch=8 {x}'

    Raises:
        BadInput: a placeholder has no value.
    """
    for doubled, mark in _ESCAPED.items():
        text = text.replace(doubled, mark)
    missing = [match.group(1) for match in _PLACEHOLDER.finditer(text) if match.group(1) not in values]
    if missing:
        raise BadInput(f"the placeholder {{{missing[0]}}} has no value")
    text = _PLACEHOLDER.sub(lambda match: text_of(values[match.group(1)]), text)
    return text.replace("\0", "{").replace("\1", "}")


def text_of(value: object) -> str:
    """A value as a command line has it."""
    return value if isinstance(value, str) else show(value)
