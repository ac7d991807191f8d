"""How busy programs beside the job keep the CPUs of its hosts, from counters of hosts and of ranks."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from allpull.rundir.read.run import RunData

Spans = Mapping[str, tuple[int, int]]
"""Host → begin and end in ns on its own clock."""


def other_cpus(run: RunData, spans: Spans) -> dict[str, float]:
    """Host → mean number of CPUs that were busy within its span beyond those of its ranks; unknown ones are absent.

    Hosts whose ranks may not use all CPUs are left out: what keeps the other CPUs busy delays no rank.
    """
    partly = {one.host for one in run.hosts if one.cpu.quota or one.cpu.usable != one.cpu.logical}
    other = {}
    for host, (begin_ns, end_ns) in spans.items():
        within = (pl.col("host") == host) & pl.col("t_ns").is_between(begin_ns, end_ns)
        samples = run.cpus.filter(within).drop_nulls().sort("t_ns")
        if host in partly or samples.height < 2:
            continue
        of_ranks = (
            run.counters.filter(within)
            .drop_nulls("cpu_ns")
            .group_by("rank")
            .agg(pl.col("cpu_ns").sort_by("t_ns").diff().clip(lower_bound=0).sum())
        )
        if of_ranks.is_empty():
            continue
        times_ns, busy_ns = samples["t_ns"].to_list(), samples["cpu_ns"].to_list()
        own_ns = int(of_ranks["cpu_ns"].sum())
        other[host] = max(0.0, (busy_ns[-1] - busy_ns[0] - own_ns) / max(1, times_ns[-1] - times_ns[0]))
    return other


def other_share(run: RunData, spans: Spans) -> float | None:
    """The largest share of the CPUs of a host that other programs keep busy; None: not known."""
    cpus = {one.host: one.cpu.usable or one.cpu.logical for one in run.hosts}
    shares = [busy / count for host, busy in other_cpus(run, spans).items() if (count := cpus.get(host))]
    return max(shares, default=None)
