"""What each step of each rank was made of, in whole nanoseconds on one clock: what a timeline draws.

The same parts as ``analyse.phases``, of every recorded step and not of steady ones alone. ``blocked`` is time in
collectives of which waiting and transfer cannot be told apart.
"""

from __future__ import annotations

import polars as pl

from allpull.analyse.together import Together
from allpull.rundir.records import TAGS

PARTS = (
    "evaluation",
    "checkpoint",
    "input",
    "copy",
    "forward",
    "backward",
    "blocked",
    "wait",
    "transfer",
    "optimizer",
)
"""In the order of a step: an evaluation or checkpoint between two steps is at the begin of the later one."""
SMALL_NS = 100_000  # what entering and leaving a step's collectives costs is nothing to draw
AS_RECORDED = ("evaluation", "checkpoint", "input", "copy", "forward", "optimizer")


def step_parts(whole: Together, ranks: int) -> pl.DataFrame:
    """Every recorded step, by rank and step, with its parts.

    Columns: rank, step, epoch, samples, begin_ns, end_ns, arrival_ns, last_ns (the last rank's arrival; null where not
    all are known), done_ns, tags (a list), and of each of ``PARTS`` its ns.
    """
    is_whole = (pl.col("arrival_ns").count().over("step") == ranks) & pl.lit(whole.clock.compares)
    steps = whole.steps.with_columns(
        pl.when(is_whole).then(pl.col("arrival_ns").max().over("step")).alias("last_ns"),
        (pl.col("done_ns") - pl.col("arrival_ns")).clip(0).fill_null(0).alias("reduced"),
    )
    waited = (pl.min_horizontal("last_ns", "done_ns") - pl.col("arrival_ns")).clip(0, pl.col("reduced")).fill_null(0)
    known = pl.when(pl.col("last_ns").is_null()).then(0).otherwise
    called = _called(whole)
    return (
        steps.join(called, on=["rank", "step"], how="left", maintain_order="left")
        .with_columns(pl.col("wait_ns", "transfer_ns", "collective_ns").fill_null(0))
        .with_columns(_kept().alias("kept"))
        .with_columns((pl.col(name) * pl.col("kept")).floor().cast(pl.Int64) for name in ("wait_ns", "transfer_ns"))
        .select(
            *("rank", "step", "epoch", "samples", "begin_ns", "end_ns", "arrival_ns", "last_ns", "done_ns"),
            pl.concat_list(pl.when(pl.col(f"tag_{tag}")).then(pl.lit(tag)) for tag in TAGS)
            .list.drop_nulls()
            .alias("tags"),
            *(pl.col(f"{name}_ns").fill_null(0).alias(name) for name in AS_RECORDED),
            (pl.col("backward_ns").fill_null(0) - pl.col("reduced")).clip(0).alias("backward"),
            (known(waited) + pl.col("wait_ns")).alias("wait"),
            (known(pl.col("reduced") - waited) + pl.col("transfer_ns")).alias("transfer"),
            (pl.when(pl.col("last_ns").is_null()).then("reduced").otherwise(0) + _unmatched()).alias("blocked"),
        )
        .sort("rank", "step")
    )


def _called(whole: Together) -> pl.DataFrame:
    """What matched calls cost, by rank and step."""
    if whole.clock.compares:
        return whole.matched.costs()
    return whole.matched.costs().clear()


def _unmatched() -> pl.Expr:
    left = pl.col("collective_ns") - pl.col("wait_ns") - pl.col("transfer_ns")
    return pl.when(left > SMALL_NS).then(left).otherwise(0)


def _kept() -> pl.Expr:
    """The part of matched calls' time that fits into what the step says: their ends are stamped twice."""
    matched = (pl.col("wait_ns") + pl.col("transfer_ns")).cast(pl.Float64)
    return pl.when(matched > 0).then(pl.min_horizontal(pl.col("collective_ns") / matched, 1.0)).otherwise(0.0)
