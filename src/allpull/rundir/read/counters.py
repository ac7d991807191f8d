"""Read the counters of hosts: column by column where all are sound, line by line where one is not.

A sample of counters describes several kinds of things, so counters become several tables.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import annotated_types
import polars as pl

from allpull.rundir.read.lines import Lines, one_damaged, read_lines, value_of
from allpull.schema.base import Record
from allpull.schema.counters import (
    CounterSample,
    CountersHeader,
    GpuCounters,
    LinkCounters,
    NicCounters,
    RankCounters,
)
from allpull.schema.probes import Ping

COUNTERS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "rank": pl.Int64(),
    "t_ns": pl.Int64(),
    **dict.fromkeys(RankCounters.model_fields, pl.Int64()),
}
"""Columns of ``RunData.counters``: one row for each sample and rank; what grows is cumulative."""

PING_MOMENTS = ("sent", "received", "answered", "back")
PINGS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "against": pl.String(),
    **{f"{moment}_ns": pl.Int64() for moment in PING_MOMENTS},
    **{f"{moment}_real_ns": pl.Int64() for moment in PING_MOMENTS},
}
"""Columns of ``RunData.pings``: one row a ping of ``host`` to ``against``. Sent and back are moments of the clocks of
``host``, received and answered of those of ``against``: the monotonic ones, then the real-time ones.
"""

GPUS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    "gpu": pl.String(),
    "busy_share": pl.Float64(),
    "memory_used_bytes": pl.Int64(),
    "clock_hz": pl.Int64(),
    "power_w": pl.Float64(),
    "energy_j": pl.Float64(),
    "temperature_c": pl.Float64(),
}
"""Columns of ``RunData.gpus``: one row for each sample and accelerator."""

NICS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    "nic": pl.String(),
    **dict.fromkeys(NicCounters.model_fields, pl.Int64()),
}
"""Columns of ``RunData.nics``: one row for each sample and network interface; bytes since boot."""

LINKS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    "peer": pl.String(),
    **{name: pl.String() if name == "local" else pl.Int64() for name in LinkCounters.model_fields},
}
"""Columns of ``RunData.links``: one row for each sample and other host; what grows is cumulative."""

CPUS_SCHEMA: dict[str, pl.DataType] = {
    "host": pl.String(),
    "t_ns": pl.Int64(),
    **dict.fromkeys(("cpu_ns", "idle_ns"), pl.Int64()),
}
"""Columns of ``RunData.cpus``: one row for each sample; the time of all CPUs of the host, cumulative."""

MAX_NUMBER = 2**62  # of a moment: differences of two such still fit 64 bits
MAX_PINGS = 100_000  # of one sample; the sidecar sends a few hundred a minute

_RANK = re.compile(r"0|[1-9][0-9]{0,6}")


_TABLES: dict[str, tuple[str, type[Record], dict[str, pl.DataType]]] = {
    "ranks": ("rank", RankCounters, COUNTERS_SCHEMA),
    "gpus": ("gpu", GpuCounters, GPUS_SCHEMA),
    "nics": ("nic", NicCounters, NICS_SCHEMA),
    "links": ("peer", LinkCounters, LINKS_SCHEMA),
}
"""For each mapping in a sample: the column of its keys, the record of its values, and the columns of its table."""
SCHEMAS = {**{name: schema for name, (_, _, schema) in _TABLES.items()}, "pings": PINGS_SCHEMA, "cpus": CPUS_SCHEMA}
"""Columns of the tables of counters."""

_BATCH_BYTES = 1 << 20  # of files that are parsed together; parsed they take some ten times as much


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersFile:
    """The file of one host's counters; ``ended``: it has the sample that its sidecar marked as the last one."""

    header: CountersHeader
    cut_off: bool
    damaged: int
    ended: bool


def read_counters(
    root: Path, relatives: Iterable[str], ranks: int, *, skip_damaged: bool
) -> tuple[list[CountersFile], dict[str, pl.DataFrame]]:
    """The counters files ``relatives`` of a run of ``ranks`` ranks, and their tables, columns as of ``SCHEMAS``.

    A file without even a whole header is left out. Files are read together; where these are not all sound, one by one.

    Raises:
        RunDirError: a file cannot be read, or a line is damaged and ``skip_damaged`` is off. Damaged is a line
            that is no sample, goes back in time, speaks of a rank that the run does not have, or holds a ping that
            was back before it was sent.
    """
    files: list[CountersFile] = []
    tables = [{name: pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()}]
    batch: list[Lines[CountersHeader]] = []
    size = 0
    for relative in relatives:
        lines = read_lines(root, relative, CountersHeader, "counters")
        if lines is not None:
            batch.append(lines)
            size += len(lines.body)
        if size >= _BATCH_BYTES:
            _read_batch(batch, ranks, files, tables, skip_damaged=skip_damaged)
            batch, size = [], 0
    _read_batch(batch, ranks, files, tables, skip_damaged=skip_damaged)
    return files, {name: pl.concat([one[name] for one in tables if name in one]) for name in SCHEMAS}


def _read_batch(
    batch: Sequence[Lines[CountersHeader]],
    ranks: int,
    files: list[CountersFile],
    tables: list[dict[str, pl.DataFrame]],
    *,
    skip_damaged: bool,
) -> None:
    """Add what ``batch`` holds to ``files`` and ``tables``."""
    read = _columns(batch, ranks)
    if read is None and len(batch) > 1:
        for lines in batch:
            _read_batch([lines], ranks, files, tables, skip_damaged=skip_damaged)
        return
    damaged = 0
    if read is None:
        read, damaged = _one_by_one(batch[0], ranks, skip_damaged=skip_damaged)
    tables.append(read)
    files += [
        CountersFile(header=lines.header, cut_off=lines.cut_off, damaged=damaged, ended=_has_last(lines.body))
        for lines in batch
    ]


def _has_last(body: bytes) -> bool:
    try:
        return value_of(body[body.rfind(b"\n", 0, -1) + 1 :]).get("last") is True
    except ValueError:
        return False  # no sample, or a damaged one


def _columns(batch: Sequence[Lines[CountersHeader]], ranks: int) -> dict[str, pl.DataFrame] | None:
    """The tables of files, their values checked column by column; None: one of them is not as it should be."""
    hosts: list[str] = []
    samples: list[dict[str, Any]] = []
    for lines in batch:
        try:
            own = [value_of(line) for _, line in lines.numbered()]
        except ValueError:
            return None
        if not all(_is_sound(field, [sample.get(name) for sample in own]) for name, field in _SAMPLE.items()):
            return None
        if any(later["t_ns"] < earlier["t_ns"] for earlier, later in pairwise(own)):
            return None
        hosts += [lines.header.host] * len(own)
        samples += own
    held = [name for name in _TABLES if any(name in sample for sample in samples)]
    tables = {name: _table(samples, hosts, name, ranks) for name in held}
    tables["pings"] = _pings(samples, hosts)
    tables["cpus"] = _cpus(samples, hosts)
    known = {name: table for name, table in tables.items() if table is not None}
    return known if len(known) == len(tables) else None


def _table(samples: Sequence[dict[str, Any]], hosts: Sequence[str], name: str, ranks: int) -> pl.DataFrame | None:
    """One table of ``samples``, each of one of ``hosts``."""
    key, kind, schema = _TABLES[name]
    hosts_of: list[str] = []
    keys: list[str] = []
    times: list[int] = []
    items: list[Any] = []
    for sample, host in zip(samples, hosts, strict=True):
        of = sample.get(name, {})
        if type(of) is not dict:
            return None
        hosts_of += [host] * len(of)
        keys += of
        items += of.values()
        times += [sample["t_ns"]] * len(of)
    if not {dict}.issuperset(map(type, items)):
        return None
    if name == "ranks" and any(not _is_rank(rank, ranks) for rank in set(keys)):
        return None
    columns: dict[str, Sequence[Any]] = {"t_ns": times, key: list(map(int, keys)) if name == "ranks" else keys}
    known = _transposed(items)
    for field, bounds in _fields(kind).items():
        columns[field] = known.get(field) or [None] * len(items)
        if not _is_sound(bounds, columns[field]):
            return None
    return _frame({"host": hosts_of, **columns}, schema)


def _transposed(items: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """The values of all ``items`` by key; None where an item lacks it."""
    first = list(items[0]) if items else []
    if len(first) > 1 and {len(first)}.issuperset(map(len, items)):
        try:
            return dict(zip(first, zip(*map(operator.itemgetter(*first), items), strict=True), strict=True))
        except KeyError:
            pass  # they have other keys
    return {name: [item.get(name) for item in items] for name in dict.fromkeys(key for item in items for key in item)}


def _pings(samples: Sequence[dict[str, Any]], hosts: Sequence[str]) -> pl.DataFrame | None:
    hosts_of: list[str] = []
    against: list[str | None] = []
    pings: list[Any] = []
    for sample, host in zip(samples, hosts, strict=True):
        own, target = sample.get("pings", []), sample.get("against")
        if type(own) is not list or len(own) > MAX_PINGS or (own and target is None):
            return None
        pings += own
        hosts_of += [host] * len(own)
        against += [target] * len(own)
    moments = list(PINGS_SCHEMA)[2:]
    if not ({list}.issuperset(map(type, pings)) and {len(moments)}.issuperset(map(len, pings))):
        return None
    columns = dict(zip(moments, zip(*pings, strict=True), strict=True)) if pings else dict.fromkeys(moments, ())
    if not all(_is_sound(_MOMENT, column) for column in columns.values()):
        return None
    sent, received, answered, back = (columns[name] for name in ("sent_ns", "received_ns", "answered_ns", "back_ns"))
    if any(map(operator.lt, back, sent)) or any(map(operator.lt, answered, received)):
        return None
    return _frame({"host": hosts_of, "against": against, **columns}, PINGS_SCHEMA)


def _cpus(samples: Sequence[dict[str, Any]], hosts: Sequence[str]) -> pl.DataFrame:
    columns = {name: [sample.get(name) for sample in samples] for name in list(CPUS_SCHEMA)[1:]}
    return _frame({"host": hosts, **columns}, CPUS_SCHEMA)


def _frame(columns: Mapping[str, Sequence[Any]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, columns[name], dtype=kind, strict=False) for name, kind in schema.items()])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """The types that a value may have, and the numbers between which it lies."""

    types: frozenset[type]
    least: float = -math.inf
    most: float = math.inf


_TYPES = {float: {float, int}}  # as pydantic has it


@cache
def _fields(kind: type[Record]) -> dict[str, _Field]:
    """The fields of ``kind`` that hold a number or a string."""
    fields = {}
    for name, field in kind.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        if set(kinds) <= {int, float, str, type(None)}:
            bounds = {type(bound): bound for bound in field.metadata}
            least, most = bounds.get(annotated_types.Ge), bounds.get(annotated_types.Le)
            fields[name] = _Field(
                types=frozenset(allowed for one in kinds for allowed in _TYPES.get(one, {one})),
                least=-math.inf if least is None else least.ge,
                most=math.inf if most is None else most.le,
            )
    return fields


_SAMPLE = _fields(CounterSample)
_MOMENT = _Field(types=frozenset({int}), least=-MAX_NUMBER, most=MAX_NUMBER)


def _is_sound(field: _Field, values: Sequence[Any]) -> bool:
    types = set(map(type, values))
    if not field.types.issuperset(types):
        return False
    if field.least == -math.inf and field.most == math.inf:
        return True
    numbers = [value for value in values if value is not None] if type(None) in types else values
    return not numbers or (min(numbers) >= field.least and max(numbers) <= field.most)


def _one_by_one(lines: Lines[CountersHeader], ranks: int, *, skip_damaged: bool) -> tuple[dict[str, pl.DataFrame], int]:
    """The tables of a file, and how many of its lines are damaged."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
    damaged = 0
    last_ns: int | None = None
    for number, line in lines.numbered():
        try:
            sample = _sample(value_of(line), ranks, last_ns)
        except ValueError as fault:
            damaged += one_damaged(lines, number, fault, skip_damaged=skip_damaged)
            continue
        last_ns = sample.t_ns
        _add(rows, lines.header.host, sample)
    return {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}, damaged


def _add(rows: dict[str, list[dict[str, Any]]], host: str, sample: CounterSample) -> None:
    """Put what ``sample`` of ``host`` holds into ``rows`` of each table."""
    at = {"host": host, "t_ns": sample.t_ns}
    rows["cpus"].append({**at, "cpu_ns": sample.cpu_ns, "idle_ns": sample.idle_ns})
    rows["ranks"].extend({**at, "rank": int(rank), **of.model_dump()} for rank, of in sample.ranks.items())
    rows["gpus"].extend({**at, "gpu": name, **of.model_dump()} for name, of in sample.gpus.items())
    rows["links"].extend({**at, "peer": name, **of.model_dump()} for name, of in sample.links.items())
    rows["nics"].extend({**at, "nic": name, **of.model_dump()} for name, of in sample.nics.items())
    moments = list(PINGS_SCHEMA)[2:]
    rows["pings"].extend(
        {"host": host, "against": sample.against, **dict(zip(moments, ping, strict=True))} for ping in sample.pings
    )


def _is_rank(name: str, ranks: int) -> bool:
    return _RANK.fullmatch(name) is not None and int(name) < ranks


def _sample(value: dict[str, Any], ranks: int, last_ns: int | None) -> CounterSample:
    sample = CounterSample.model_validate(value, strict=True)
    if last_ns is not None and sample.t_ns < last_ns:
        raise ValueError(f"t_ns is {sample.t_ns}, before that of the sample before, {last_ns}")
    for rank in sample.ranks:
        if not _is_rank(rank, ranks):
            raise ValueError(f"ranks has {rank[:40]!r}, expected 0 to {ranks - 1}")
    if sample.pings and sample.against is None:
        raise ValueError("pings against no host")
    if len(sample.pings) > MAX_PINGS:
        raise ValueError(f"{len(sample.pings):,} pings in one sample, more than {MAX_PINGS:,}")
    for ping in sample.pings:
        _check_ping(ping)
    return sample


def _check_ping(ping: Ping) -> None:
    sent, received, answered, back = ping[:4]
    if max(map(abs, ping)) > MAX_NUMBER:
        raise ValueError(f"a ping with a moment beyond {MAX_NUMBER}")
    if back < sent or answered < received:
        raise ValueError("a ping that was back before it was sent, or answered before it was received")
