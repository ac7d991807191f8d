"""Steps in which gradients were exchanged among some ranks only, or not at all, as local SGD does.

DDP records when its hook returned, whatever the hook did. Where all that it called were collectives of smaller groups
(``post_localSGD_hook`` after its first steps), no rank waits there for all others. Nor does it where each network is
averaged by a group of fewer ranks (``DistributedDataParallel(process_group=...)``), as in ensembles, unless the program
calls collectives that connect these groups.
"""

from __future__ import annotations

import polars as pl

from allpull.rundir.read.run import RunData

STEPS = pl.Series("step", dtype=pl.Int64())


def locally_exchanged(run: RunData) -> pl.Series:
    """The steps of ``run`` in whose backward passes no recorded collectives connect all ranks, ascending.

    One of all ranks does, and so do those of groups that overlap: a hook may reduce within hosts and then between them.
    Empty where no communication hook was recorded: other calls in backward say nothing about DDP's own exchange, whose
    groups count where there are no calls at all.
    """
    if in_small_groups(run):
        steps = run.steps["step"].unique().sort().cast(STEPS.dtype)
        if not run.collectives["step"].is_in(steps.implode()).any():  # those after them are others
            return steps
    if not hook_names(run) or run.collectives.is_empty():
        return STEPS
    kinds = [
        (rank, one.id, one.group, one.group_ranks is None or one.group_ranks >= run.record.ranks)
        for rank, log in run.events.items()
        for one in log.collective_kinds
        if one.inside == "backward"
    ]
    names = {"rank": pl.Int64(), "kind": pl.Int64(), "group": pl.String(), "is_whole": pl.Boolean()}
    called = run.collectives.join(pl.DataFrame(kinds, schema=names, orient="row"), on=["rank", "kind"])
    whole = called.filter("is_whole").select("step").unique()
    who = (
        called.join(whole, on="step", how="anti")
        .select("step", "rank", pl.col("group").rank("dense"))  # a name may hold anything
        .unique()
        .group_by("step")
        .agg(pl.format("{} {}", "rank", "group").sort().str.join(",").alias("who"))
    )
    apart = [one for one in who["who"].unique() if not _connects(one, run.record.ranks)]
    return who.filter(pl.col("who").is_in(apart))["step"].sort()


def _connects(who: str, ranks: int) -> bool:
    """Whether groups connect all ``ranks`` ranks; ``who`` called in which of them, as in ``0 1,1 1,1 2,2 2``."""
    members = dict[str, set[int]]()
    for pair in who.split(","):
        rank, _, group = pair.partition(" ")
        members.setdefault(group, set()).add(int(rank))
    joined, *rest = members.values()
    while overlapping := [one for one in rest if one & joined]:
        joined = joined.union(*overlapping)
        rest = [one for one in rest if one not in overlapping]
    return len(joined) == ranks


def in_small_groups(run: RunData) -> bool:
    """Whether each network that is known to be averaged, is so by fewer than all ranks."""
    groups = [one.group_ranks for log in run.events.values() for one in log.data_parallel]
    return bool(groups) and all(ranks is not None and ranks < run.record.ranks for ranks in groups)


def hook_names(run: RunData) -> list[str]:
    """The names of the communication hooks of ``run``."""
    return sorted({one.hook for log in run.events.values() for one in log.data_parallel if one.hook is not None})
