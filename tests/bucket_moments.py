"""When each bucket of gradients was ready, one row per bucket."""

from __future__ import annotations

import numpy as np
import polars as pl

from allpull.rundir.read.buckets import counts


def each_bucket(ready: pl.DataFrame) -> pl.DataFrame:
    """``ready`` (columns ``SCHEMA``) with a row for each bucket: columns rank, step, bucket (from 0) and ready_ns."""
    moments, count = ready["ready_ns"].explode(), counts(ready)
    first = np.repeat(np.cumsum(count) - count, count)
    rank, step = (np.repeat(ready[name].to_numpy(), count) for name in ("rank", "step"))
    return pl.DataFrame({"rank": rank, "step": step, "bucket": np.arange(first.size) - first, "ready_ns": moments})
