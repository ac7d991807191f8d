"""All ranks of a run on one timeline, as a file that opens in Perfetto's UI (https://ui.perfetto.dev).

Events are written one by one, so that a long run does not fill memory; the complete file replaces an older one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.timeline import step_parts, step_reductions
from allpull.errors import BadInput
from allpull.report.atomic_file import place_all
from allpull.report.perfetto import tracks
from allpull.report.perfetto.trace_events import Sheet
from allpull.report.printable import short
from allpull.rundir.read.run import RunData
from allpull.schema.gap import Gap, texts

MAX_EVENTS = 2_000_000  # some 400 MB, which browsers still open
QUICK_EVENTS = 300_000  # some 40 MB, which open in seconds: the default of a large run, where no steps were chosen
EVENTS_PER_STEP = 12
EVENTS_PER_CALL = 6  # itself, its wait and transfer on two tracks, and the phase that it cuts in two
PLACEMENT = (
    "waiting, transfers, evaluations and checkpoints are where they were recorded; "
    "the other phases of a step have their measured lengths and the usual order around these"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of writing: ``events`` of the steps ``first`` to ``last``; ``notes`` say what was left out."""

    path: Path
    events: int
    first: int
    last: int
    notes: tuple[str, ...]


def write(aligned: AlignedRun, path: Path, *, first: int = 0, end: int | None = None) -> Written:
    """Write the steps from ``first`` to before ``end`` (None: to the last) of the run to ``path``.

    If the steps exceed ``MAX_EVENTS``, only the first ones are written, with a note; if none were chosen and they
    exceed ``QUICK_EVENTS``, those from the first steady one.

    Raises:
        BadInput: no such step exists, or the file cannot be written.
    """
    run = aligned.data
    numbers = pl.col("step")
    chosen = run.steps.filter(numbers >= first, numbers < end if end is not None else pl.lit(value=True))
    if chosen.is_empty():
        known = run.steps["step"].unique().sort().to_list()
        recorded = f"steps {known[0]:,} to {known[-1]:,} were recorded" if known else "no step was recorded"
        raise BadInput(f"{short(run.record.id, 80)}: there is nothing to draw", hint=recorded)
    if first == 0 and end is None:
        fitting, notes = _window(aligned)
    else:
        fitting, notes = _that_fit(chosen, run.collectives, MAX_EVENTS)
    drawing = _drawing(aligned, int(fitting[0]), int(fitting[-1]))
    count = _Count()
    place_all(path, _document(drawing, count))
    if not drawing.aligned.clock.compares:
        notes.append("the clocks of the hosts are not aligned: ranks do not line up")
    notes += texts(drawing.gaps)
    return Written(path=path, events=count.events, first=int(fitting[0]), last=int(fitting[-1]), notes=tuple(notes))


def _window(aligned: AlignedRun) -> tuple[pl.Series, list[str]]:
    """The step numbers to write where none were chosen, and a note if these are not all."""
    run = aligned.data
    fitting, notes = _that_fit(run.steps, run.collectives, QUICK_EVENTS)
    if not notes:
        return fitting, notes
    steady = aligned.steady.steps[aligned.steady.used]
    if steady.size:
        fitting, _ = _that_fit(run.steps.filter(pl.col("step") >= steady[0]), run.collectives, QUICK_EVENTS)
    left = run.steps["step"].n_unique() - fitting.len()
    window = f"a window of {fitting.len():,} steps; {left:,} others were left out so that the file opens quickly"
    return fitting, [f"{window}: choose steps with --steps FIRST:LAST"]


def _that_fit(steps: pl.DataFrame, calls: pl.DataFrame, most: int) -> tuple[pl.Series, list[str]]:
    """The leading step numbers that have at most ``most`` events, and a note if these are not all."""
    of_steps = steps.group_by("step").agg((pl.len() * EVENTS_PER_STEP).alias("events"))
    of_calls = calls.group_by("step").agg((pl.len() * EVENTS_PER_CALL).alias("calls"))
    by_step = of_steps.join(of_calls, on="step", how="left").sort("step")
    total = (pl.col("events") + pl.col("calls").fill_null(0)).cast(pl.Int64).cum_sum()
    fitting = by_step.filter((total <= most) | (pl.int_range(pl.len()) == 0))["step"]
    left = by_step.height - fitting.len()
    if not left:
        return fitting, []
    return fitting, [f"{left:,} later steps were left out so that the file can be opened: choose others with --steps"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Drawing:
    """The data to draw, on one clock."""

    aligned: AlignedRun
    base_ns: int
    steps: pl.DataFrame
    reductions: pl.DataFrame
    spans: pl.DataFrame
    calls: pl.DataFrame
    buckets: pl.DataFrame
    counters: pl.DataFrame
    nics: pl.DataFrame
    gpus: pl.DataFrame
    gaps: tuple[Gap, ...]


def _drawing(aligned: AlignedRun, first: int, last: int) -> _Drawing:
    run = aligned.data
    inside = pl.col("step").is_between(first, last)
    steps = step_parts(aligned, run.record.ranks, inside)
    reduced = step_reductions(aligned, run.record.ranks, inside)
    uses = aligned.matched.uses.with_row_index("use")
    calls = aligned.matched.calls.filter(inside).join(uses, on="use", how="left", maintain_order="left")
    buckets = aligned.clock.shared(aligned.buckets.times.filter(inside), ("ready_ns", "start_ns", "end_ns"))
    spans = aligned.clock.shared(_spans(run).filter(inside), ("begin_ns", "end_ns"))
    begins = (steps["begin_ns"].min(), calls["begin_ns"].min(), buckets["ready_ns"].min(), spans["begin_ns"].min())
    base_ns = min(begin for begin in begins if isinstance(begin, int))
    end_ns = steps.select(pl.col("end_ns").max()).item()
    first_ranks = _first_ranks(run)
    counters, nics, gpus = (
        _around(aligned.clock.shared(table, ("t_ns",)), base_ns, end_ns)
        for table in (run.counters, *(table.join(first_ranks, on="host") for table in (run.nics, run.gpus)))
    )
    return _Drawing(
        aligned=aligned,
        base_ns=base_ns,
        steps=steps,
        reductions=reduced,
        spans=spans,
        calls=calls,
        buckets=buckets,
        counters=counters,
        nics=nics,
        gpus=gpus,
        gaps=aligned.buckets.gaps,
    )


def _first_ranks(run: RunData) -> pl.DataFrame:
    """Columns host and rank: the first rank of each host, whose clock aligns the host."""
    rows = [(header.host, rank) for rank, header in sorted(run.headers.items())]
    ranks = pl.DataFrame(rows, schema={"host": pl.String(), "rank": pl.Int64()}, orient="row")
    return ranks.unique("host", keep="first", maintain_order=True)


def _around(samples: pl.DataFrame, begin_ns: int, end_ns: int) -> pl.DataFrame:
    """The samples of each host from the last one at or before ``begin_ns`` to the first one at or after ``end_ns``."""
    t_ns = pl.col("t_ns")
    since = t_ns.filter(t_ns <= begin_ns).max().over("host").fill_null(begin_ns)
    until = t_ns.filter(t_ns >= end_ns).min().over("host").fill_null(end_ns)
    return samples.filter(t_ns.is_between(since, until))


def _spans(run: RunData) -> pl.DataFrame:
    schema = {"rank": pl.Int64(), "name": pl.String(), "epoch": pl.Int64(), "step": pl.Int64()}
    rows = [
        (rank, span.name, span.epoch, span.step, span.begin_ns, span.end_ns)
        for rank, log in run.events.items()
        for span in log.spans
        if span.end_ns >= span.begin_ns
    ]
    return pl.DataFrame(rows, schema={**schema, "begin_ns": pl.Int64(), "end_ns": pl.Int64()}, orient="row")


def _document(drawing: _Drawing, count: _Count) -> Iterator[bytes]:
    bound_s = drawing.aligned.clock.bound_s
    clock = "the clocks of the hosts do not compare" if bound_s is None else "one clock for all ranks"
    clock += f", right to within {bound_s:.9f} s" if bound_s else ""
    about = {"run": drawing.aligned.data.record.id, "placement": PLACEMENT, "clock": clock}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":['.encode()
    separator = "\n"
    for event in _events(drawing):
        count.events += 1
        yield f"{separator}{event}".encode()
        separator = ",\n"
    yield b"\n]}\n"


@dataclass(slots=True)
class _Count:
    """How many events were written."""

    events: int = 0


def _events(drawing: _Drawing) -> Iterator[str]:
    """All events, rank by rank, then host by host, and track by track, each track in the order of time."""
    run = drawing.aligned.data
    sheet = Sheet(drawing.base_ns)
    tables = {
        name: getattr(drawing, name).partition_by("rank", as_dict=True, maintain_order=True)
        for name in ("steps", "spans", "calls", "reductions", "buckets", "counters")
    }
    for (rank,), rows in sorted(tables["steps"].items()):
        host = run.headers[rank].host if rank in run.headers else "unknown host"
        marks = run.events[rank].epochs if rank in run.events else ()
        yield from sheet.process(rank, f"rank {rank} · {short(host, 80)}")
        spans, calls, reduced, buckets, counters = (
            tables[name].get((rank,), getattr(drawing, name).clear())
            for name in ("spans", "calls", "reductions", "buckets", "counters")
        )
        exact = tracks.exact_pieces(reduced, calls, spans)
        yield from tracks.steps(sheet, rank, rows, {mark.step: mark.epoch for mark in marks}, exact)
        yield from tracks.reductions(sheet, rank, reduced)
        yield from tracks.pauses(sheet, rank, spans)
        yield from tracks.collectives(sheet, rank, calls)
        yield from tracks.buckets(sheet, rank, buckets)
        yield from tracks.counters(sheet, rank, counters)
    for place, (host, _) in enumerate(_first_ranks(run).iter_rows(), start=max(run.record.ranks - 1, *run.headers) + 1):
        nics, gpus = (table.filter(pl.col("host") == host) for table in (drawing.nics, drawing.gpus))
        if not nics.is_empty() or not gpus.is_empty():
            yield from sheet.process(place, f"host {short(host, 80)}")
            yield from tracks.host_counters(sheet, place, nics, gpus)
