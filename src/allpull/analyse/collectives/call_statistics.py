"""Statistics of the collectives that a program calls: how often, what they cost, and at which rate they run.

Rates are those of nccl-tests (doc/PERFORMANCE.md there): algbw = size ÷ τ, with τ from the last arrival to the median
end, and busbw = algbw times what each link must carry of the size, so that it compares with the link's own rate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.collectives.matching import UNEVEN, Matched
from allpull.schema.results import CollectiveUse
from allpull.units import NS_PER_S

MOST_USES = 50  # shown; a collective that costs less than fifty others is not the problem of a run
RETURN_NS = 20_000  # waiting for a call that has already ended takes this long: its end carries no information
KEY = ("op", "size_bytes", "dtype", "group_ranks", "inside")


def call_statistics(matched: Matched, steady: NDArray[np.int64], ranks: int, *, slack_ns: int) -> list[CollectiveUse]:
    """The collectives of a job of ``ranks`` ranks, most costly first, at most ``MOST_USES``.

    Those that are called in the steps ``steady`` are counted there, others in all steps. A rate is None where its time
    is below ``slack_ns``, the resolution of the clocks.
    """
    marked = pl.DataFrame({"step": steady}, schema={"step": pl.Int64}).with_columns(steady=True)
    calls = (
        _described(matched).join(marked, on="step", how="left").with_columns(pl.col("steady").fill_null(value=False))
    )
    counted = calls.with_columns(pl.col("steady").any().over(KEY).alias("of_steady")).filter(
        pl.col("steady") | ~pl.col("of_steady")
    )
    steps = {True: max(1, steady.size), False: max(1, matched.calls["step"].n_unique())}
    by_use = counted.group_by(KEY).agg(
        pl.col("of_steady").first(),
        pl.col("group").first(),
        pl.col("group").n_unique().alias("groups"),
        pl.len().alias("calls"),
        pl.col("rank").n_unique().alias("ranks"),
        pl.col("match").null_count().alias("unmatched"),
        pl.col("blocked_ns").cast(pl.Float64).sum(),
    )
    of_uses = by_use.join(_times(counted), on=KEY, how="left", nulls_equal=True)
    ordered = of_uses.sort("blocked_ns", "calls", *KEY, descending=[True, True, *(False for _ in KEY)], nulls_last=True)
    return [
        _use(row, steps[row["of_steady"]], ranks, slack_ns) for row in ordered.head(MOST_USES).iter_rows(named=True)
    ]


def busbw_factor(op: str, ranks: int) -> float | None:
    """What each link carries of the size of ``op`` among ``ranks`` ranks; None where that is not one number.

    >>> busbw_factor("all_reduce", 4), busbw_factor("all_gather_into_tensor", 4), busbw_factor("barrier", 4)
    (1.5, 0.75, None)
    """
    share = (ranks - 1) / ranks
    factors = {
        "all_reduce": 2 * share,
        "all_gather": share,
        "reduce_scatter": share,
        "all_to_all": share,
        "gather": share,
        "scatter": share,
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    return next((factor for name, factor in factors.items() if op.startswith(name)), None) if ranks > 1 else None


def _described(matched: Matched) -> pl.DataFrame:
    """Calls of known kind with their descriptions; matched calls get the same description."""
    known = matched.calls.drop_nulls("use").join(matched.uses.with_row_index("use"), on="use", how="left")
    uneven = pl.any_horizontal(pl.col("op").str.starts_with(name) for name in UNEVEN)
    together = pl.col("match").is_not_null()
    return known.sort("rank", "step", maintain_order=True).with_columns(
        pl.when(uneven & together)
        .then(pl.col("size_bytes").max().over("match"))
        .otherwise("size_bytes")
        .alias("size_bytes"),
        pl.when(together).then(pl.col("inside").first().over("match")).otherwise("inside").alias("inside"),
    )


def _times(calls: pl.DataFrame) -> pl.DataFrame:
    """Per use the medians over steps of what a call cost in the mean: columns of ``KEY``, wait_ns, transfer_ns, tau_ns.

    Of several calls in one step the first alone may wait, so that no call is typical; tau_ns is the median over calls.
    """
    arrived = pl.max_horizontal("last_ns", "begin_ns")
    tau = (pl.col("end_ns") - arrived).filter(pl.col("blocked_ns") >= RETURN_NS).median()
    by_match = (
        calls.lazy()
        .drop_nulls(["match", "last_ns"])
        .group_by(*KEY, "match")
        .agg(pl.col("step").min(), pl.col("wait_ns", "transfer_ns").mean(), tau.alias("tau_ns"))
    )
    costs = by_match.group_by(*KEY, "step").agg(pl.col("wait_ns", "transfer_ns").mean())
    rates = by_match.group_by(KEY).agg(pl.col("tau_ns").median())
    medians = costs.group_by(KEY).agg(pl.col("wait_ns", "transfer_ns").median())
    return medians.join(rates, on=KEY, how="left", nulls_equal=True).collect()


def _use(row: dict[str, Any], steps: int, ranks: int, slack_ns: int) -> CollectiveUse:
    size, tau_ns, group_ranks = row["size_bytes"], row["tau_ns"], row["group_ranks"]
    algbw = size * NS_PER_S / tau_ns if tau_ns is not None and tau_ns > max(slack_ns, 0) and size else None
    factor = busbw_factor(row["op"], group_ranks)
    wait, transfer = (None if row[name] is None else row[name] / NS_PER_S for name in ("wait_ns", "transfer_ns"))
    return CollectiveUse(
        op=row["op"],
        size_bytes=size,
        dtype=row["dtype"],
        group=row["group"] if row["groups"] == 1 else f"{row['groups']} groups",
        group_ranks=group_ranks,
        inside=row["inside"],
        steady=row["of_steady"],
        calls=row["calls"],
        unmatched=row["unmatched"],
        calls_per_step=row["calls"] / (steps * row["ranks"]),
        blocked_s_per_step=row["blocked_ns"] / (NS_PER_S * steps * ranks),
        wait_s=wait,
        transfer_s=transfer,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if algbw is not None and factor is not None else None,
    )
