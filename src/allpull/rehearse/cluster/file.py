"""Read a cluster file: return the cluster that it describes, or report every error in it at once.

This is the only module of the package that reads files written by users.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from allpull.config.load import MAX_BYTES, MAX_LINE
from allpull.config.typed import build, find_faults, show, show_path, show_text
from allpull.errors import BadInput, ConfigError, nearest
from allpull.regular_file import regular
from allpull.rehearse.cluster.checks import find_contradictions
from allpull.rehearse.cluster.faults import KINDS, Fault
from allpull.rehearse.cluster.model import AcceleratorTable, Cluster, ClusterTable, HostTable, LayerTimes, SwitchTable
from allpull.rehearse.cluster.quantity import check

Record = TypeVar("Record")

MAX_ENTRIES = 1000  # of one kind of table
MAX_LAYERS = 10_000
MAX_FAULTS_SHOWN = 50
TABLES = ("cluster", "switch", "host", "accelerator", "faults")


def load_cluster(path: Path) -> Cluster:
    """The cluster that the TOML file at ``path`` describes.

    Raises:
        BadInput: the file cannot be read.
        ConfigError: with one line for each error in the file.
    """
    source = show_text(str(path), 400)
    text = _read(path, "cluster file")
    cluster, faults = _assemble(_parse(text, source), path.parent)
    if not faults and cluster is not None:
        faults = find_contradictions(cluster)
    if faults or cluster is None:
        more = [f"and {len(faults) - MAX_FAULTS_SHOWN:,} more"] if len(faults) > MAX_FAULTS_SHOWN else []
        raise ConfigError(source, [*faults[:MAX_FAULTS_SHOWN], *more], hint="correct each line; nothing was started")
    return replace(cluster, sha256=hashlib.sha256(text.encode()).hexdigest())


def _read(path: Path, what: str) -> str:
    shown = show_text(str(path), 400)
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{what} {shown}: {reason}", hint="give the path of a TOML file") from error
    if len(content) > MAX_BYTES:
        raise BadInput(f"{what} {shown} has more than {MAX_BYTES:,} bytes", hint="is it the right file?")
    return text


def _parse(text: str, source: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            raise ConfigError(source, [f"line {number} has {len(line):,} characters; at most {MAX_LINE:,} are read"])
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(source, [f"it is not TOML: {show_text(str(error), 200)}"]) from error


def _assemble(plain: Mapping[str, Any], folder: Path) -> tuple[Cluster | None, list[str]]:
    faults = [_unknown_table(name) for name in plain if name not in TABLES]
    if "cluster" not in plain:
        faults.append("cluster: missing; expected a table with hosts and link")
    table = _table(ClusterTable, plain.get("cluster", {}), "cluster", faults) if "cluster" in plain else None
    switches = [_switch(item, where, faults) for where, item in _entries(plain, "switch", faults)]
    hosts = [_table(HostTable, item, where, faults) for where, item in _entries(plain, "host", faults)]
    planted = [_planted(item, where, faults) for where, item in _entries(plain, "faults", faults)]
    accelerator = None
    if "accelerator" in plain:
        accelerator = _table(AcceleratorTable, plain["accelerator"], "accelerator", faults)
    layers = _layers(folder / accelerator.layers, faults) if accelerator and accelerator.layers else None
    if faults or table is None:
        return None, faults
    cluster = Cluster(
        table=table,
        switches=tuple(item for item in switches if item),
        host_tables=tuple(item for item in hosts if item),
        accelerator=accelerator,
        layers=layers,
        faults=tuple(item for item in planted if item),
    )
    return cluster, []


def _unknown_table(name: str) -> str:
    close = nearest(name, TABLES)
    suggestion = f"did you mean '{close}'?" if close else f"known: {', '.join(TABLES)}"
    return f"{show_path((name,))}: no such table; {suggestion}"


def _entries(plain: Mapping[str, Any], name: str, faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Path and content of each ``[[name]]`` table."""
    entries = plain.get(name, [])
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        faults.append(f"{name}: expected at most {MAX_ENTRIES:,} tables, each under [[{name}]]; found {show(entries)}")
        return
    for index, item in enumerate(entries):
        yield f"{name}[{index}]", item


def _table(kind: type[Record], item: object, where: str, faults: list[str]) -> Record | None:
    """``item`` as a ``kind``; None if it is invalid, with lines added to ``faults``."""
    if not isinstance(item, dict):
        faults.append(f"{where}: expected a table; found {show(item)}")
        return None
    sound, errors = check(kind, item, f"{where}.")
    errors += [f"{where}.{line}" for line in find_faults(kind, sound)]
    faults += errors
    return None if errors else build(kind, item, where)


def _switch(item: object, where: str, faults: list[str]) -> SwitchTable | None:
    if isinstance(item, dict) and "hosts" in item:
        hosts = item["hosts"]
        if not isinstance(hosts, list) or not all(type(host) is int for host in hosts):
            faults.append(f"{where}.hosts: expected whole numbers, such as [0, 1]; found {show(hosts)}")
            hosts = []
        item = {**item, "hosts": tuple(hosts)}
    return _table(SwitchTable, item, where, faults)


def _planted(item: object, where: str, faults: list[str]) -> Fault | None:
    if not isinstance(item, dict):
        faults.append(f"{where}: expected a table; found {show(item)}")
        return None
    name = item.get("kind")
    if isinstance(name, str) and name in KINDS:
        return _table(KINDS[name], item, where, faults)
    close = nearest(name, KINDS) if isinstance(name, str) else None
    given = (show(name) if "kind" in item else "nothing") + (f"; did you mean '{close}'?" if close else "")
    faults.append(f"{where}.kind: expected a kind of fault; found {given}; known: {', '.join(KINDS)}")
    return None


def _layers(path: Path, faults: list[str]) -> tuple[LayerTimes, ...] | None:
    """The profile at ``path``: a JSON list with ``forward_ms`` and ``backward_ms`` for each layer, in order."""
    try:
        items = json.loads(_read(path, "profile"))
    except BadInput as error:
        faults.append(f"accelerator.layers: {error.message}")
        return None
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list) or not 0 < len(items) <= MAX_LAYERS or not all(map(_is_layer, items)):
        faults.append(
            "accelerator.layers: expected a JSON list of "
            f'{{"forward_ms": 1.2, "backward_ms": 2.3}}, one per layer, 1 to {MAX_LAYERS:,} of them'
        )
        return None
    return tuple(LayerTimes(forward_s=item["forward_ms"] / 1e3, backward_s=item["backward_ms"] / 1e3) for item in items)


def _is_layer(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    times = [item.get("forward_ms"), item.get("backward_ms")]
    return all(
        isinstance(time, int | float) and not isinstance(time, bool) and math.isfinite(time) and 0 <= time <= 1e7
        for time in times
    )
