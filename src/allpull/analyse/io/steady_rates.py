"""Read rates in the steady steps, from the cumulative counters of each rank and its loader workers."""

from __future__ import annotations

import polars as pl

from allpull.schema.reading import Io
from allpull.units import NS_PER_S


def reading(counters: pl.DataFrame, windows: pl.DataFrame, ranks: int) -> Io:
    """What a job of ``ranks`` ranks read per second, summed over ranks.

    Args:
        counters: columns of ``rundir.read.counters.COUNTERS_SCHEMA``; times are of each host's monotonic clock.
        windows: columns ``rank``, ``begin_ns``, ``end_ns``: the span of each rank's steady steps, on the same clock.
        ranks: how many ranks the job has.

    Each rate is None unless every rank has two samples inside its window.
    """
    inside = (
        counters.lazy()
        .join(windows.lazy(), on="rank")
        .filter(pl.col("t_ns").is_between(pl.col("begin_ns"), pl.col("end_ns")))
        .sort("rank", "t_ns")
        .collect()
    )
    return Io(
        read_bytes_per_s=_per_s(inside, "read_bytes", ranks),
        reads_per_s=_per_s(inside, "read_calls", ranks),
        storage_read_bytes_per_s=_per_s(inside, "storage_read_bytes", ranks),
    )


def _per_s(samples: pl.DataFrame, counter: str, ranks: int) -> float | None:
    """Σ over ranks of growth ÷ time.

    The sum over a rank's processes drops when a loader worker ends; such a drop counts as no growth, so
    the rate is then a lower bound.
    """
    by_rank = (
        samples.drop_nulls(counter)
        .group_by("rank", maintain_order=True)  # sums of floats depend on their order
        .agg(
            pl.col(counter).cast(pl.Float64).diff().clip(lower_bound=0).sum().alias("growth"),
            (pl.col("t_ns").last() - pl.col("t_ns").first()).alias("ns"),
        )
        .filter(pl.col("ns") > 0)
    )
    if by_rank.height < ranks:
        return None
    return float((by_rank["growth"] / (by_rank["ns"] / NS_PER_S)).sum())
