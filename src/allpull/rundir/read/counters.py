"""Read the counters of a host, line by line.

A sample of counters describes several kinds of things, so a counters file becomes several tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from allpull.rundir.read.lines import one_damaged, read_lines, value_of
from allpull.schema.counters import CounterSample, CountersHeader, LinkCounters, NicCounters, RankCounters
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

MAX_NUMBER = 2**62  # of a moment: differences of two such still fit 64 bits
MAX_PINGS = 100_000  # of one sample; the sidecar sends a few hundred a minute

_RANK = re.compile(r"0|[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersFile:
    """The counters of one host: rows with the columns of ``COUNTERS_SCHEMA``, and of the four other schemas here."""

    header: CountersHeader
    rows: list[dict[str, Any]]
    pings: list[dict[str, Any]]
    gpus: list[dict[str, Any]]
    nics: list[dict[str, Any]]
    links: list[dict[str, Any]]
    cut_off: bool
    damaged: int


def read_counters(root: Path, relative: str, ranks: int, *, skip_damaged: bool) -> CountersFile | None:
    """The counters file ``relative`` of a run of ``ranks`` ranks; None where not even a header is whole.

    Raises:
        RunDirError: the file cannot be read, or a line is damaged and ``skip_damaged`` is off. Damaged is a line
            that is no sample, goes back in time, speaks of a rank that the run does not have, or holds a ping that
            was back before it was sent.
    """
    lines = read_lines(root, relative, CountersHeader, "counters")
    if lines is None:
        return None
    file = CountersFile(
        header=lines.header, rows=[], pings=[], gpus=[], nics=[], links=[], cut_off=lines.cut_off, damaged=0
    )
    damaged = 0
    last_ns: int | None = None
    for number, line in lines.numbered():
        try:
            sample = _sample(value_of(line), ranks, last_ns)
        except ValueError as fault:
            damaged += one_damaged(lines, number, fault, skip_damaged=skip_damaged)
            continue
        last_ns = sample.t_ns
        _add(file, sample)
    return replace(file, damaged=damaged)


def _add(file: CountersFile, sample: CounterSample) -> None:
    """Put what ``sample`` holds into the tables of ``file``."""
    host, at = file.header.host, {"host": file.header.host, "t_ns": sample.t_ns}
    file.rows.extend({**at, "rank": int(rank), **of.__dict__} for rank, of in sample.ranks.items())
    file.gpus.extend({**at, "gpu": name, **of.__dict__} for name, of in sample.gpus.items())
    file.links.extend({**at, "peer": name, **of.__dict__} for name, of in sample.links.items())
    file.nics.extend({**at, "nic": name, **of.__dict__} for name, of in sample.nics.items())
    moments = list(PINGS_SCHEMA)[2:]
    file.pings.extend(
        {"host": host, "against": sample.against, **dict(zip(moments, ping, strict=True))} for ping in sample.pings
    )


def _sample(value: dict[str, Any], ranks: int, last_ns: int | None) -> CounterSample:
    sample = CounterSample.model_validate(value, strict=True)
    if last_ns is not None and sample.t_ns < last_ns:
        raise ValueError(f"t_ns is {sample.t_ns}, before that of the sample before, {last_ns}")
    for rank in sample.ranks:
        if not _RANK.fullmatch(rank) or int(rank) >= ranks:
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
