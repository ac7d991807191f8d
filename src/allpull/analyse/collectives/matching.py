"""Match the collectives that ranks recorded to each other, and tell waiting in them from transfer (DESIGN §4).

Calls belong together that have the same number in the same process group, or else the same place among their like in
the same step; all ranks of the group must be there, with equal operation, type and size. A rank was blocked from
``end − blocked`` to ``end``, which is all that the call cost it. With L the last arrival that it can have waited for::

    wait_r     = clip(L − (end_r − blocked_r), 0, blocked_r)        ("Wait at N×N")
    transfer_r = blocked_r − wait_r

Nobody leaves an all-reduce, all-gather or barrier before the last rank is there, so L is the last start of all.
Where data go from or to a root, L is the last start that came before the rank was let go. That holds the root's in a
broadcast and all of them for the root of a reduce; and it holds more where the library makes more ranks meet: Gloo's
senders wait until their receivers are there, rings and trees pass data through other ranks. A rank that returns at
once waits for nobody, as it should; one that is blocked while another arrives late is taken to wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from allpull.rundir.read.events import EventLog

ROOTED = ("broadcast", "scatter", "reduce", "gather")
"""Operations with one root; names that begin so are of their kind, but for those in ``NOT_ROOTED``."""
NOT_ROOTED = ("reduce_scatter",)
UNEVEN = ("gather", "scatter", "all_to_all")
"""Operations in which ranks may have different sizes: the root holds all parts, or parts differ."""
SPREADING = ("broadcast", "scatter")
"""Of the rooted ones, those whose data come from the root."""
LAUNCH_NS = 1_000_000
"""A call that returns sooner may only have been launched, as on an accelerator: it need not have met the others."""
OPAQUE = ("evaluation", "checkpoint")
"""Phases that keep the time of collectives within them: it is theirs, and no part of a step's waiting."""

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

    ``calls`` has a row each with the columns of ``rundir.collectives.SCHEMA`` and:
    ``use`` (row of ``uses``; null: its kind is not known), ``match`` (equal for calls that belong together; null:
    unmatched), ``last_ns`` (L), ``wait_ns`` and ``transfer_ns`` (null where unmatched or never waited for).
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
        kept = self.uses.with_row_index("use").filter(~pl.col("inside").is_in(OPAQUE).fill_null(value=False))
        waited = self.calls.drop_nulls("wait_ns").join(kept, on="use", how="semi")
        return waited.group_by("rank", "step").agg(pl.col("wait_ns", "transfer_ns").sum())


def match(calls: pl.DataFrame, events: Mapping[int, EventLog], *, slack_ns: int) -> Matched:
    """Match ``calls``, whose moments are all of one clock up to ``slack_ns``.

    ``calls`` has the columns of ``rundir.collectives.SCHEMA``. Calls that contradict each other, in that a rank was
    blocked and left before one arrived without whom it cannot leave, are not matched.
    """
    kinds = _kinds(events)
    uses = kinds.select(USE).unique(maintain_order=True).with_row_index("use")
    size = pl.when(_begins(UNEVEN)).then(0).otherwise("size_bytes").alias("size")
    coded = kinds.join(uses, on=USE, how="left", nulls_equal=True, maintain_order="left").select(
        *("rank", "kind", "use", "group_ranks", "root"),
        pl.col("group").rank("dense").alias("group"),
        pl.struct("op", "dtype", "group_ranks", size).rank("dense").alias("what"),
        (_begins(ROOTED) & ~_begins(NOT_ROOTED)).alias("rooted"),
        _begins(SPREADING).alias("spreads"),
    )
    known = calls.with_row_index("call").join(coded, on=["rank", "kind"], how="left", maintain_order="left")
    by_number = _whole(known.filter(pl.col("seq").is_not_null()), ["group", "seq"], slack_ns)
    rest = known.join(by_number, on="call", how="anti", maintain_order="left")
    place = pl.int_range(pl.len()).over("rank", "group", "step", "what", order_by="begin_ns").alias("place")
    by_place = _whole(rest.with_columns(place), ["group", "step", "what", "place"], slack_ns)
    later = by_place.with_columns(pl.col("match") + by_number["match"].max() + 1) if by_number.height else by_place
    costs = known.join(pl.concat([by_number, later]), on="call", how="left", maintain_order="left")
    wait = _wait(slack_ns)
    parts = (wait.alias("wait_ns"), (pl.col("blocked_ns") - wait).alias("transfer_ns"))
    return Matched(calls=costs.select(*calls.columns, "use", "match", "last_ns", *parts), uses=uses.select(USE))


def _kinds(events: Mapping[int, EventLog]) -> pl.DataFrame:
    rows = [
        (rank, one.id, one.op, one.size_bytes, one.dtype, one.group, one.group_ranks, one.root, one.inside)
        for rank, log in events.items()
        for one in log.collective_kinds
    ]
    kinds = pl.DataFrame(rows, schema=KIND_SCHEMA, orient="row")
    return kinds.unique(["rank", "kind"], keep="last", maintain_order=True)


def _begins(names: tuple[str, ...]) -> pl.Expr:
    return pl.any_horizontal(pl.col("op").str.starts_with(name) for name in names)


def _whole(calls: pl.DataFrame, keys: list[str], slack_ns: int) -> pl.DataFrame:
    """Calls with equal ``keys`` that make up a whole: columns call, match and last_ns."""
    known = calls.filter(pl.col("use").is_not_null())
    whole = (
        known.lazy()
        .group_by(keys)
        .agg(
            pl.len().alias("calls"),
            pl.col("rank").n_unique().alias("ranks"),
            pl.col("group_ranks").first(),
            (pl.col("what").min() == pl.col("what").max()).alias("alike"),
            pl.col("begin_ns").max().alias("last_ns"),
        )
        .filter("alike", pl.col("calls") == pl.col("group_ranks"), pl.col("ranks") == pl.col("group_ranks"))
        .select(*keys, "last_ns", pl.int_range(pl.len()).alias("match"))
        .collect()
    )
    found = known.join(whole, on=keys, how="inner")
    rooted = found.filter("rooted")
    strange = pl.concat([_left_early(found.filter(~pl.col("rooted")), "last_ns", slack_ns), _astray(rooted, slack_ns)])
    columns = ("call", "match", "last_ns")
    together = pl.concat([found.filter(~pl.col("rooted")).select(columns), _met(rooted).select(columns)])
    return together.join(strange, on="match", how="anti").sort("call")


def _left_early(calls: pl.DataFrame, needed: str, slack_ns: int) -> pl.DataFrame:
    """Matches in which a rank was blocked and left before the moment ``needed``."""
    early = (pl.col("blocked_ns") > LAUNCH_NS) & (pl.col("end_ns") < pl.col(needed) - slack_ns)
    return calls.filter(early).select("match").unique()


def _astray(calls: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Matches of rooted operations in which data would have come before they were sent."""
    is_root = pl.col("rank") == pl.col("root")
    roots = calls.filter(is_root).select("match", pl.col("begin_ns").alias("root_ns"))
    received = calls.filter(pl.col("spreads"), ~is_root).join(roots, on="match", how="inner")
    collected = calls.filter(~pl.col("spreads"), is_root)
    return pl.concat([_left_early(received, "root_ns", slack_ns), _left_early(collected, "last_ns", slack_ns)])


def _met(calls: pl.DataFrame) -> pl.DataFrame:
    """The last start in each call's match that came before the call ended."""
    starts = calls.select("match", pl.col("begin_ns").alias("last_ns")).sort("last_ns")
    ended = calls.select("call", "match", pl.col("end_ns").fill_null(pl.col("begin_ns"))).sort("end_ns")
    return ended.join_asof(
        starts,
        left_on="end_ns",
        right_on="last_ns",
        by="match",
        strategy="backward",
        coalesce=False,
        check_sortedness=False,
    )


def _wait(slack_ns: int) -> pl.Expr:
    blocked_at = pl.col("end_ns") - pl.col("blocked_ns")
    wait = (pl.col("last_ns") - blocked_at).clip(0, pl.col("blocked_ns"))
    return pl.when(pl.col("end_ns") < pl.col("last_ns") - slack_ns).then(0).otherwise(wait)
