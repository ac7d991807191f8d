"""The tracks of one rank's timeline: steps with their phases, reductions, pauses, collectives, buckets.

Every function takes rows of one rank on the shared clock and yields events; a schematic placement is marked in the
event itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from allpull.analyse.collectives.matching import OPAQUE
from allpull.analyse.timeline import PARTS, Piece, place_parts
from allpull.report.perfetto.trace_events import Sheet, lanes
from allpull.report.printable import short

STEPS, REDUCTION, PAUSES, COLLECTIVES, BUCKETS = 1, 2, 100, 200, 300  # first tracks; the numbers are their order
MAX_LANES = 64  # tracks of one kind; events that overlap with as many others are left out
ABOUT_CALL = ("size_bytes", "dtype", "group", "seq", "inside", "step")
COUNTERS = (
    ("CPUs in use", "cpu_ns", 1.0),
    ("read MB/s", "read_bytes", 1e3),
    ("reads/s", "read_calls", 1e9),
    ("from storage MB/s", "storage_read_bytes", 1e3),
)
"""Title, cumulative column, and the factor of its growth per ns."""
NICS = (("received MB/s", "received_bytes", 1e3), ("sent MB/s", "sent_bytes", 1e3))
GPUS = (("busy %", "busy_share", 100.0), ("power W", "power_w", 1.0), ("memory GB", "memory_used_bytes", 1e-9))
"""Title, column, and its factor."""


def exact_pieces(reduced: pl.DataFrame, calls: pl.DataFrame, spans: pl.DataFrame) -> dict[int, list[Piece]]:
    """By step, the parts whose moments were recorded: frames as ``reductions``, ``collectives``, ``pauses``."""
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for row in reduced.iter_rows(named=True):
        pieces[row["step"]] += _blocked(row["arrival_ns"], row["met_ns"], row["done_ns"])
    for row in calls.drop_nulls(["blocked_ns", "end_ns"]).iter_rows(named=True):
        if row["inside"] not in OPAQUE:
            begin_ns = row["end_ns"] - row["blocked_ns"]
            met_ns = None if row["wait_ns"] is None else begin_ns + row["wait_ns"]
            pieces[row["step"]] += _blocked(begin_ns, met_ns, row["end_ns"])
    for row in spans.iter_rows(named=True):
        if row["name"] in OPAQUE:
            pieces[row["step"]].append((row["name"], row["begin_ns"], row["end_ns"]))
    return pieces


def _blocked(begin_ns: int, met_ns: int | None, end_ns: int) -> list[Piece]:
    """A rank was blocked from ``begin_ns`` to ``end_ns``; it waited until ``met_ns``, if that is known."""
    if end_ns <= begin_ns:
        return []
    if met_ns is None:
        return [("blocked", begin_ns, end_ns)]
    return [piece for piece in (("wait", begin_ns, met_ns), ("transfer", met_ns, end_ns)) if piece[2] > piece[1]]


def steps(
    sheet: Sheet, rank: int, rows: pl.DataFrame, epochs: Mapping[int, int], exact: Mapping[int, Sequence[Piece]]
) -> Iterator[str]:
    """Each step with its phases in it: rows as of ``analyse.timeline``; ``epochs`` are those that begin at a step.

    ``exact``: the result of ``exact_pieces``; these keep their position, and the other phases are placed around them.
    """
    yield from sheet.track(rank, STEPS, "steps")
    following = [*rows["begin_ns"].to_list()[1:], None]
    for row, next_ns in zip(rows.iter_rows(named=True), following, strict=True):
        begin_ns = row["begin_ns"]
        end_ns = max(begin_ns, row["end_ns"] if next_ns is None else min(row["end_ns"], next_ns))
        if row["step"] in epochs:
            yield sheet.instant(rank, STEPS, f"epoch {epochs[row['step']]}", begin_ns)
        about = {name: row[name] for name in ("epoch", "samples") if row[name] is not None}
        about |= {f"{name}_ms": row[name] / 1e6 for name in PARTS if row[name]}
        about |= {"tags": ", ".join(row["tags"])} if row["tags"] else {}
        yield sheet.slice(rank, STEPS, f"step {row['step']}", (begin_ns, end_ns), about)
        lengths_ns = {name: row[name] for name in PARTS}
        pieces = place_parts(begin_ns, end_ns, lengths_ns, exact.get(row["step"], ()), row["arrival_ns"])
        for (name, from_ns, until_ns), is_exact in pieces:
            where = {} if is_exact else {"placement": "schematic"}
            yield sheet.slice(rank, STEPS, name, (from_ns, until_ns), where)


def reductions(sheet: Sheet, rank: int, rows: pl.DataFrame) -> Iterator[str]:
    """From the arrival of the last gradient of each backward pass to the return of all, as recorded."""
    if rows.is_empty():
        return
    yield from sheet.track(rank, REDUCTION, "reduction of gradients")
    over_ns = sheet.base_ns
    for row in rows.iter_rows(named=True):
        arrival_ns, done_ns = row["arrival_ns"], row["done_ns"]
        if not over_ns <= arrival_ns <= done_ns:
            continue
        over_ns = done_ns
        yield sheet.instant(rank, REDUCTION, "arrival", arrival_ns)
        for name, *times_ns in _blocked(arrival_ns, row["met_ns"], done_ns):
            yield sheet.slice(rank, REDUCTION, name, (times_ns[0], times_ns[1]), {"step": row["step"]})


def pauses(sheet: Sheet, rank: int, rows: pl.DataFrame) -> Iterator[str]:
    """Evaluations, checkpoints and other spans: columns name, epoch, begin_ns, end_ns."""
    for track, row in _spread(sheet, rank, (PAUSES, "between steps"), rows.sort("begin_ns"), "begin_ns"):
        if isinstance(row, str):
            yield row
        else:
            times_ns = row["begin_ns"], row["end_ns"]
            yield sheet.slice(rank, track, short(row["name"], 80), times_ns, {"epoch": row["epoch"]})


def collectives(sheet: Sheet, rank: int, rows: pl.DataFrame) -> Iterator[str]:
    """Calls of collectives, with the waiting in them: columns of ``Matched.calls`` and ``Matched.uses``."""
    ended = rows.sort("begin_ns").with_columns(pl.col("end_ns").fill_null(pl.col("begin_ns")))
    for track, row in _spread(sheet, rank, (COLLECTIVES, "collectives"), ended, "begin_ns"):
        if isinstance(row, str):
            yield row
            continue
        name = short(row["op"] or "collective of an unknown kind", 80)
        begin_ns, end_ns = row["begin_ns"], row["end_ns"]
        if row["blocked_ns"] is None:
            yield sheet.instant(rank, track, f"{name}, never waited for", begin_ns)
            continue
        about = {key: row[key] for key in ABOUT_CALL if row[key] is not None}
        yield sheet.slice(rank, track, name, (begin_ns, end_ns), about)
        if row["wait_ns"] is not None:
            blocked_ns = max(begin_ns, end_ns - row["blocked_ns"])
            met_ns = min(end_ns, blocked_ns + row["wait_ns"])
            for part, times_ns in (("wait", (blocked_ns, met_ns)), ("transfer", (met_ns, end_ns))):
                if times_ns[1] > times_ns[0]:
                    yield sheet.slice(rank, track, part, times_ns, {})


def buckets(sheet: Sheet, rank: int, rows: pl.DataFrame) -> Iterator[str]:
    """Buckets from when they were ready to when they were reduced: columns of ``traced_buckets.SCHEMA``."""
    whole = rows.drop_nulls(["start_ns", "end_ns"]).filter(pl.col("end_ns") >= pl.col("ready_ns")).sort("ready_ns")
    for track, row in _spread(sheet, rank, (BUCKETS, "buckets"), whole, "ready_ns"):
        if isinstance(row, str):
            yield row
            continue
        ready_ns, end_ns = row["ready_ns"], row["end_ns"]
        about = {name: row[name] for name in ("size_bytes", "step") if row[name] is not None}
        yield sheet.slice(rank, track, f"bucket {row['bucket']}", (ready_ns, end_ns), about)
        start_ns = min(max(ready_ns, row["start_ns"]), end_ns)
        if end_ns > start_ns:
            yield sheet.slice(rank, track, "all-reduce", (start_ns, end_ns), {})


def counters(sheet: Sheet, rank: int, rows: pl.DataFrame) -> Iterator[str]:
    """Rates between samples of the rank and its loader workers: columns of ``rundir.read.counters.COUNTERS_SCHEMA``."""
    yield from _rates(sheet, rank, rows, COUNTERS)


def host_counters(sheet: Sheet, place: int, nics: pl.DataFrame, gpus: pl.DataFrame) -> Iterator[str]:
    """Network interfaces and accelerators of one host: columns of ``NICS_SCHEMA`` and ``GPUS_SCHEMA``.

    ``place`` is that of the host, after those of all ranks. Interfaces that carried nothing are left out.
    """
    for (nic,), rows in nics.group_by("nic", maintain_order=True):
        if any(rows[name].n_unique() > 1 for _, name, _ in NICS):
            yield from _rates(
                sheet, place, rows, [(f"{short(str(nic), 40)} {title}", name, scale) for title, name, scale in NICS]
            )
    for (gpu,), rows in gpus.sort("t_ns").group_by("gpu", maintain_order=True):
        for title, name, scale in GPUS:
            for t_ns, value in rows.select("t_ns", name).drop_nulls().iter_rows():
                if math.isfinite(value):
                    shown = f"accelerator {short(str(gpu), 40)} {title}"
                    yield sheet.count(place, shown, max(t_ns, sheet.base_ns), value * scale)


def _rates(sheet: Sheet, place: int, rows: pl.DataFrame, kinds: Iterable[tuple[str, str, float]]) -> Iterator[str]:
    """The growth of cumulative columns between samples, each from its first sample or the begin of the file on."""
    ordered = rows.sort("t_ns")
    for title, name, scale in kinds:
        per_ns = (pl.col(name).diff().cast(pl.Float64) / pl.col("t_ns").diff()).clip(0) * scale
        for t_ns, value in ordered.select("t_ns", per_ns.shift(-1)).drop_nulls().iter_rows():
            if math.isfinite(value):
                yield sheet.count(place, title, max(t_ns, sheet.base_ns), value)


def _spread(
    sheet: Sheet, rank: int, kind: tuple[int, str], rows: pl.DataFrame, begin: str
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each row with a track on which it overlaps with no other; before the first row of a track, the track's names."""
    first, title = kind
    named = 0
    placed = lanes(rows.select(begin, "end_ns").iter_rows())
    for lane, row in zip(placed, rows.iter_rows(named=True), strict=True):
        if lane >= MAX_LANES:
            continue
        track = first + lane
        if lane >= named:
            named = lane + 1
            for event in sheet.track(rank, track, title if lane == 0 else f"{title} ({lane + 1})"):
                yield track, event
        yield track, row
