"""Evaluations and checkpoints: which ranks did them, how long they took, and where the other ranks waited meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.clock.shared_clock import SharedClock
from allpull.analyse.collectives.matching import Matched
from allpull.analyse.collectives.waiting import reductions
from allpull.rundir.read.events import EventLog
from allpull.schema.results import Pause
from allpull.units import NS_PER_S

NAMES: tuple[Literal["evaluation", "checkpoint"], ...] = ("evaluation", "checkpoint")
REDUCTION = "reduction of gradients"
WAITS_SCHEMA = pl.Schema({"rank": pl.Int64(), "what": pl.String(), "begin_ns": pl.Int64(), "end_ns": pl.Int64()})
SPANS_SCHEMA = {
    "rank": pl.Int64(),
    "name": pl.String(),
    "step": pl.Int64(),
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}

Moments = NDArray[np.int64]


def pauses(
    events: Mapping[int, EventLog], waits: pl.DataFrame | None, clock: SharedClock, *, ranks: int, epochs: int
) -> list[Pause]:
    """The evaluations and the checkpoints of a job of ``ranks`` ranks, where there were any.

    ``waits``: the result of ``waits``, on ``clock``; None: unknown.
    """
    spans = clock.shared(pause_spans(events), ("begin_ns", "end_ns"))
    pauses = []
    for name in NAMES:
        of_name = spans.filter(pl.col("name") == name)
        if not of_name.is_empty():
            pauses.append(_pause(name, of_name, waits, ranks, epochs))
    return pauses


def waits(every: pl.DataFrame, matched: Matched, ranks: int) -> pl.DataFrame:
    """Each time that a rank was blocked before the last one arrived: rank, what it was blocked in, begin_ns, end_ns.

    ``every`` reduction: columns ``collectives.reductions.SCHEMA``; moments are of one clock with those of ``matched``.
    """
    inside = pl.when(pl.col("inside").is_null()).then("op").otherwise(pl.format("{} in {}", "op", "inside"))
    blocked_at = pl.col("end_ns") - pl.col("blocked_ns")
    called = (
        matched.calls.filter(pl.col("wait_ns") > 0)
        .join(matched.uses.with_row_index("use"), on="use", how="left")
        .select(
            "rank", inside.alias("what"), blocked_at.alias("begin_ns"), (blocked_at + pl.col("wait_ns")).alias("end_ns")
        )
    )
    reduced = (
        reductions(every, ranks)
        .filter(pl.col("wait_ns") > 0)
        .select(
            "rank",
            pl.lit(REDUCTION).alias("what"),
            pl.col("arrival_ns").alias("begin_ns"),
            (pl.col("arrival_ns") + pl.col("wait_ns")).alias("end_ns"),
        )
    )
    return pl.concat([called.cast(WAITS_SCHEMA), reduced.cast(WAITS_SCHEMA)])


def some_rank_goes_on(events: Mapping[int, EventLog], ranks: int) -> bool:
    """Whether there are evaluations or checkpoints that not all ``ranks`` do: else none waits for others meanwhile."""
    doing = pause_spans(events).group_by("name").agg(pl.col("rank").n_unique())
    return bool((doing["rank"] < ranks).any())


def pause_spans(events: Mapping[int, EventLog]) -> pl.DataFrame:
    """Every evaluation and checkpoint, columns ``SPANS_SCHEMA``; moments of each rank's own clock."""
    rows = [
        (rank, span.name, span.step, span.begin_ns, span.end_ns)
        for rank, log in events.items()
        for span in log.spans
        if span.name in NAMES and span.end_ns >= span.begin_ns
    ]
    return pl.DataFrame(rows, schema=SPANS_SCHEMA, orient="row")


def _pause(
    name: Literal["evaluation", "checkpoint"], spans: pl.DataFrame, waits: pl.DataFrame | None, ranks: int, epochs: int
) -> Pause:
    length_s = (pl.col("end_ns") - pl.col("begin_ns")).cast(pl.Float64).sum() / NS_PER_S
    # a checkpoint may be several files, which nothing but their step says belong together
    times = pl.col("step").n_unique() if name == "checkpoint" else pl.len()
    by_rank = spans.group_by("rank").agg(times.alias("times"), length_s.alias("seconds")).sort("rank")
    does = by_rank["rank"].to_list()
    longest = max(by_rank["seconds"].to_list())
    waited_s, waited_in = None, None
    if waits is not None and len(does) < ranks:
        last_ns = pl.lit(waits["end_ns"].max(), dtype=pl.Int64())  # after the last step no waiting is recorded
        recorded = spans.filter(pl.col("begin_ns") < last_ns)
        if not recorded.is_empty():
            waited = _during(waits.filter(~pl.col("rank").is_in(does)), union(recorded))
            waited_s = sum(waited.values()) / (ranks - len(does))
            waited_in = max(waited, key=lambda place: waited[place]) if waited_s > 0 else None
    return Pause(
        name=name,
        times=max(by_rank["times"].to_list()),
        fewest=min(by_rank["times"].to_list()),
        ranks=[] if len(does) == ranks else does,
        seconds=longest,
        shortest_s=min(by_rank["seconds"].to_list()),
        s_per_epoch=longest / epochs if epochs else None,
        waited_s=waited_s,
        waited_in=waited_in,
    )


def union(spans: pl.DataFrame) -> tuple[Moments, Moments]:
    """Begins and ends of the disjoint intervals that ``spans`` cover, ascending."""
    ordered = spans.sort("begin_ns")
    begins, ends = ordered["begin_ns"].to_numpy(), np.maximum.accumulate(ordered["end_ns"].to_numpy())
    if not begins.size:
        return begins, ends
    is_new = np.append([True], begins[1:] > ends[:-1])
    return begins[is_new], ends[np.append(np.flatnonzero(is_new)[1:] - 1, ends.size - 1)]


def _during(waits: pl.DataFrame, intervals: tuple[Moments, Moments]) -> dict[str, float]:
    """Seconds of ``waits`` inside ``intervals``, by what was waited in; a wait that touches two counts in the first."""
    begins, ends = intervals
    begin_ns, end_ns = waits["begin_ns"].to_numpy(), waits["end_ns"].to_numpy()
    place = np.minimum(np.searchsorted(ends, begin_ns, side="right"), ends.size - 1)
    inside_s = np.maximum(np.minimum(end_ns, ends[place]) - np.maximum(begin_ns, begins[place]), 0) / NS_PER_S
    by_what = pl.DataFrame({"what": waits["what"], "s": inside_s}).group_by("what").agg(pl.col("s").sum())
    return dict(by_what.sort("what").iter_rows())
