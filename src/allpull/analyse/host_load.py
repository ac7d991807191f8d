"""How busy programs beside the job keep the CPUs of its hosts, from counters of hosts and of ranks."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from allpull.rundir.read.run import RunData

Spans = Mapping[str, tuple[int, int]]
"""Host → begin and end in ns on its own clock."""

_WINDOWS = {"host": pl.String(), "begin_ns": pl.Int64(), "end_ns": pl.Int64()}


def other_cpus(run: RunData, spans: Spans) -> dict[str, float]:
    """Host → mean number of CPUs that were busy within its span beyond those of its ranks; unknown ones are absent.

    Hosts whose ranks may not use all CPUs are left out: what keeps the other CPUs busy delays no rank.
    """
    partly = {one.host for one in run.hosts if one.cpu.quota or one.cpu.usable != one.cpu.logical}
    windows = pl.DataFrame([(host, *span) for host, span in spans.items()], schema=_WINDOWS, orient="row")
    within = pl.col("t_ns").is_between(pl.col("begin_ns"), pl.col("end_ns"))
    first, last = (pl.col("cpu_ns").sort_by("t_ns").get(place) for place in (0, -1))
    busy = (
        run.cpus.drop_nulls()
        .join(windows, on="host")
        .filter(within)
        .group_by("host")
        .agg(pl.len().alias("samples"), (last - first).alias("busy_ns"), (pl.col("t_ns").max() - pl.col("t_ns").min()))
    )
    of_ranks = (
        run.counters.drop_nulls("cpu_ns")
        .join(windows, on="host")
        .filter(within)
        .group_by("host", "rank")
        .agg(pl.col("cpu_ns").sort_by("t_ns").diff().clip(lower_bound=0).sum())
        .group_by("host")
        .agg(pl.col("cpu_ns").sum().alias("own_ns"))
    )
    known = busy.filter((pl.col("samples") > 1) & ~pl.col("host").is_in(list(partly))).join(of_ranks, on="host")
    rows = known.select("host", "busy_ns", "own_ns", "t_ns").iter_rows()
    other = {host: max(0.0, (busy_ns - own_ns) / max(1, length_ns)) for host, busy_ns, own_ns, length_ns in rows}
    return {host: other[host] for host in spans if host in other}


def other_share(run: RunData, spans: Spans) -> float | None:
    """The largest share of the CPUs of a host that other programs keep busy; None: not known."""
    cpus = {one.host: one.cpu.usable or one.cpu.logical for one in run.hosts}
    shares = [busy / count for host, busy in other_cpus(run, spans).items() if (count := cpus.get(host))]
    return max(shares, default=None)
