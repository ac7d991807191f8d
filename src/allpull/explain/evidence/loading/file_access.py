"""What ranks read from storage and wrote to it in each step, from the counters of their hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats, of_steps
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Bools
from allpull.rundir.read.run import RunData
from allpull.units import NS_PER_S

BUSIER = 4.0  # times the usual rate of file access: a stall with less is not caused by it
LEAST_BYTES_PER_S = 1e6  # a log line is less
COUNTERS = ("storage_read_bytes", "storage_write_bytes")  # not those of calls, which include sockets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileAccess:
    """``moved_bytes`` in the ``seconds`` of each step on its host, (steps, ranks), between samples in proportion.

    A step on a device may take longer than its host, or less, so that bytes go with the time of the host. The samples
    are ``interval_s`` apart.
    """

    moved_bytes: Floats
    seconds: Floats
    interval_s: float


def file_access(run: RunData, steps: NDArray[np.int64]) -> FileAccess | None:
    """The file access of ``run`` in ``steps``; None unless every rank has samples before and after."""
    ranks = run.record.ranks
    moved_bytes, seconds = np.zeros((steps.size, ranks)), np.zeros((steps.size, ranks))
    intervals_s = []
    samples = run.counters.select("rank", "t_ns", *COUNTERS).drop_nulls(COUNTERS).sort("rank", "t_ns")
    within = of_steps(run.steps.select("rank", "step", "begin_ns", "end_ns"), steps).sort("rank", "step")
    for rank, (mine, moments) in enumerate(zip(_of_ranks(samples, ranks), _of_ranks(within, ranks), strict=True)):
        if mine.height < 2 or moments.height != steps.size:
            return None
        grown = sum(mine[name].cast(pl.Float64).diff().fill_null(0).clip(lower_bound=0).cum_sum() for name in COUNTERS)
        sampled_ns, edges_ns = mine["t_ns"].to_numpy(), moments.select("begin_ns", "end_ns").to_numpy()
        if edges_ns.min() < sampled_ns[0] or edges_ns.max() > sampled_ns[-1]:
            return None
        edges = np.interp(edges_ns, sampled_ns, np.asarray(grown, dtype=np.float64))
        moved_bytes[:, rank] = edges[:, 1] - edges[:, 0]
        seconds[:, rank] = (edges_ns[:, 1] - edges_ns[:, 0]) / NS_PER_S
        intervals_s.append(float(np.median(np.diff(sampled_ns))) / NS_PER_S)
    return FileAccess(moved_bytes=moved_bytes, seconds=seconds, interval_s=max(intervals_s))


def busier_in(files: FileAccess | None, held: Bools) -> tuple[float, float] | None:
    """File access of a rank in the steps in which it is ``held`` up, (steps, ranks), and in others, bytes/s.

    Of the lower median of the ranks that ever are; over the time of their hosts. None: not known, or hosts are not held
    up for two samples of the counters; or they read and write no more than usual.
    """
    ranks = held.any(axis=0)
    if files is None or not ranks.any() or float(np.median(files.seconds[held])) < 2 * files.interval_s:
        return None
    in_stalls, elsewhere = (float(lower_median(_rates(files, steps)[ranks])) for steps in (held, ~held))
    return (in_stalls, elsewhere) if in_stalls >= max(BUSIER * elsewhere, LEAST_BYTES_PER_S) else None


def _rates(files: FileAccess, steps: Bools) -> Floats:
    """Bytes/s of each rank in its ``steps``, (steps, ranks) → (ranks,)."""
    rates: Floats = (files.moved_bytes * steps).sum(axis=0) / np.maximum((files.seconds * steps).sum(axis=0), 1e-9)
    return rates


def _of_ranks(records: pl.DataFrame, ranks: int) -> Iterator[pl.DataFrame]:
    """The rows of each rank from 0 on; ``records`` go by rank."""
    edges = np.searchsorted(records["rank"].to_numpy(), np.arange(ranks + 1)).tolist()
    return (records[begin:end] for begin, end in pairwise(edges))
