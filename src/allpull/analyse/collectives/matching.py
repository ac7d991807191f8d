"""Match the collectives that ranks recorded to each other, and split each into waiting and transfer (DESIGN §4).

Calls match if they have the same number in the same process group, or else the same position among equal
calls of the same step; all ranks of the group must take part, with equal operation, type and size. A rank was blocked
from ``end − blocked`` to ``end``, which is all that the call cost it. Which rank waited for which is decided in
``collectives.waiting``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from allpull.analyse.collectives import waiting
from allpull.rundir.read.events import EventLog
from allpull.units import NS_PER_S

UNEVEN = ("gather", "scatter", "all_to_all")
"""Operations in which sizes may differ between ranks: the root has all parts, or parts differ."""
LAUNCH_NS = 1_000_000
"""A call that returns sooner may only have been launched, as on an accelerator, without meeting other ranks."""
OPAQUE = ("evaluation", "checkpoint")
"""Phases that keep the time of collectives within them; it does not count as waiting of the step."""

USE = ("op", "size_bytes", "dtype", "group", "group_ranks", "root", "inside")
KIND_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int64(),
    "kind": pl.Int64(),
    "op": pl.String(),
    "size_bytes": pl.Int64(),
    "dtype": pl.String(),
    "group": pl.String(),
    "group_ranks": pl.Int64(),
    "root": pl.Int64(),
    "inside": pl.String(),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matched:
    """Every call of a collective, and what it cost its rank.

    ``calls`` has one row each, with the columns of ``rundir.read.collectives.SCHEMA`` and:
    ``use`` (row of ``uses``; null: its kind is not known), ``match`` (equal for calls of one collective; null:
    unmatched), ``last_ns`` (L; the own start where a rank of a rooted call waited for nobody), ``wait_ns`` and
    ``transfer_ns`` (null where unmatched or never waited for).
    ``uses`` has the columns ``USE``: what is called, and in which phase.
    """

    calls: pl.DataFrame
    uses: pl.DataFrame

    @property
    def unmatched(self) -> int:
        """How many calls could not be matched."""
        return int(self.calls["match"].null_count())

    def costs(self) -> pl.DataFrame:
        """Per rank and step what calls outside of ``OPAQUE`` phases cost: columns rank, step, wait_ns, transfer_ns."""
        waited = self.calls.drop_nulls("wait_ns").join(self._outside_opaque(), on="use", how="semi")
        return waited.group_by("rank", "step").agg(pl.col("wait_ns", "transfer_ns").sum())

    def launches(self) -> pl.DataFrame:
        """Per rank and step with calls that were never waited for: their number, and how long others of it blocked.

        Columns rank, step, launched, blocked_ns. A call that is only launched blocks nobody, however long that takes.
        """
        of_steps = self.calls.join(self._outside_opaque(), on="use", how="semi").group_by("rank", "step")
        counted = of_steps.agg(pl.col("blocked_ns").null_count().alias("launched"), pl.col("blocked_ns").sum())
        return counted.filter(pl.col("launched") > 0)

    def _outside_opaque(self) -> pl.DataFrame:
        return self.uses.with_row_index("use").filter(~pl.col("inside").is_in(OPAQUE).fill_null(value=False))


def match(calls: pl.DataFrame, events: Mapping[int, EventLog], *, slack_ns: int) -> Matched:
    """Match ``calls``, whose moments are all of one clock up to ``slack_ns``.

    ``calls`` has the columns of ``rundir.read.collectives.SCHEMA``. Calls that contradict each other, in that a rank
    was blocked and left before one arrived without whom it cannot leave, are not matched.
    """
    kinds = _kinds(events)
    uses = kinds.select(USE).unique(maintain_order=True).with_row_index("use")
    size = pl.when(waiting.begins_with(pl.col("op"), UNEVEN)).then(0).otherwise("size_bytes").alias("size")
    coded = kinds.join(uses, on=USE, how="left", nulls_equal=True, maintain_order="left").select(
        *("rank", "kind", "use", "group_ranks", "root"),
        pl.col("group").rank("dense").alias("group"),
        pl.struct("op", "dtype", "group_ranks", size).rank("dense").alias("what"),
        waiting.direction(pl.col("op")).alias("direction"),
    )
    known = calls.with_row_index("call").join(coded, on=["rank", "kind"], how="left", maintain_order="left")
    by_number = _whole(known.filter(pl.col("seq").is_not_null()), ["group", "seq"], slack_ns)
    unnumbered = known.join(by_number, on="call", how="anti", maintain_order="left")
    place = pl.int_range(pl.len()).over("rank", "group", "step", "what", order_by="begin_ns").alias("place")
    by_place = _whole(unnumbered.with_columns(place), ["group", "step", "what", "place"], slack_ns)
    later = by_place.with_columns(pl.col("match") + by_number["match"].max() + 1) if by_number.height else by_place
    matched = known.join(pl.concat([by_number, later]), on="call", how="left", maintain_order="left")
    costs = matched.join(_costs(matched, slack_ns), on="call", how="left", maintain_order="left")
    parts = ("last_ns", "wait_ns", "transfer_ns")
    return Matched(calls=costs.select(*calls.columns, "use", "match", *parts), uses=uses.select(USE))


def _kinds(events: Mapping[int, EventLog]) -> pl.DataFrame:
    rows = [
        (rank, one.id, one.op, one.size_bytes, one.dtype, one.group, one.group_ranks, one.root, one.inside)
        for rank, log in events.items()
        for one in log.collective_kinds
    ]
    kinds = pl.DataFrame(rows, schema=KIND_SCHEMA, orient="row")
    return kinds.unique(["rank", "kind"], keep="last", maintain_order=True)


def _whole(calls: pl.DataFrame, keys: list[str], slack_ns: int) -> pl.DataFrame:
    """Calls with equal ``keys`` that make up a whole and do not contradict each other: columns call and match."""
    known = calls.filter(pl.col("use").is_not_null())
    whole = (
        known.lazy()
        .group_by(keys)
        .agg(
            pl.len().alias("calls"),
            pl.col("rank").n_unique().alias("ranks"),
            pl.col("group_ranks").first(),
            (pl.col("what").min() == pl.col("what").max()).alias("equal"),
            pl.col("begin_ns").max().alias("last_ns"),
        )
        .filter("equal", pl.col("calls") == pl.col("group_ranks"), pl.col("ranks") == pl.col("group_ranks"))
        .select(*keys, "last_ns", pl.int_range(pl.len()).alias("match"))
        .collect()
    )
    joined = known.join(whole, on=keys, how="inner")
    return joined.join(_contradictions(joined, slack_ns), on="match", how="anti").sort("call").select("call", "match")


def _left_early(calls: pl.DataFrame, needed: str, slack_ns: int) -> pl.DataFrame:
    """Matches in which a rank was blocked and left before the moment ``needed``."""
    early = (pl.col("blocked_ns") > LAUNCH_NS) & (pl.col("end_ns") < pl.col(needed) - slack_ns)
    return calls.filter(early).select("match").unique()


def _contradictions(calls: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Matches in which data would have arrived before they were sent."""
    direction, is_root = pl.col("direction"), pl.col("rank") == pl.col("root")
    roots = calls.filter(is_root).select("match", pl.col("begin_ns").alias("root_ns"))
    received = calls.filter(direction == waiting.FROM_ROOT, ~is_root).join(roots, on="match", how="inner")
    collected = calls.filter((direction == waiting.ALL) | ((direction == waiting.TO_ROOT) & is_root))
    return pl.concat([_left_early(received, "root_ns", slack_ns), _left_early(collected, "last_ns", slack_ns)])


def _costs(calls: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Of the calls that have a match: columns call, last_ns, wait_ns and transfer_ns."""
    matched = calls.drop_nulls("match").sort("match", maintain_order=True)
    blocked = matched["end_ns"].is_not_null() & matched["blocked_ns"].is_not_null()
    end_ns = matched["end_ns"].fill_null(matched["begin_ns"])
    entries = waiting.Calls(
        call=matched["match"].rank("dense").to_numpy().astype(np.intp) - 1,
        arrive=matched["begin_ns"].to_numpy(),
        begin=(end_ns - matched["blocked_ns"].fill_null(0)).to_numpy(),
        end=end_ns.to_numpy(),
        blocks=blocked.to_numpy(),
        is_root=(matched["rank"] == matched["root"]).fill_null(value=False).to_numpy(),
        direction=matched["direction"].to_numpy(),
    )
    met = waiting.met(entries, slack=slack_ns, rounding=waiting.ROUNDING_S * NS_PER_S)
    wait_ns, _ = waiting.wait_and_transfer(entries.begin, entries.end, met.last)
    rooted_alone = (entries.direction != waiting.ALL) & ~met.waits
    parts = matched.select(
        "call",
        pl.Series("last_ns", np.where(rooted_alone, entries.arrive, met.last)),
        pl.Series("wait_ns", np.where(met.waits, wait_ns, 0)),
        "blocked_ns",
    )
    wait = pl.when(blocked).then("wait_ns")
    return parts.select("call", "last_ns", wait.alias("wait_ns"), (pl.col("blocked_ns") - wait).alias("transfer_ns"))
