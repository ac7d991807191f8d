"""Steps in which a communication hook exchanged gradients among some ranks only, or not at all, as local SGD does.

DDP records when its hook returned, whatever the hook did. Where all that it called were collectives of smaller groups
(``post_localSGD_hook`` after its first steps), no rank waits there for all others.
"""

from __future__ import annotations

import polars as pl

from allpull.rundir.read.run import RunData

STEPS = pl.Series("step", dtype=pl.Int64())


def locally_exchanged(run: RunData) -> pl.Series:
    """The steps of ``run`` in whose backward passes all recorded collectives were of fewer than all ranks, ascending.

    Empty where no communication hook was recorded: other calls in backward say nothing about DDP's own exchange.
    """
    if not hook_names(run) or run.collectives.is_empty():
        return STEPS
    kinds = [
        (rank, one.id, one.group_ranks)
        for rank, log in run.events.items()
        for one in log.collective_kinds
        if one.inside == "backward"
    ]
    inside = pl.DataFrame(kinds, schema={"rank": pl.Int64, "kind": pl.Int64, "group_ranks": pl.Int64}, orient="row")
    largest = (
        run.collectives.join(inside, on=["rank", "kind"])
        .group_by("step")
        .agg(pl.col("group_ranks").max().fill_null(run.record.ranks))
    )
    return largest.filter(pl.col("group_ranks") < run.record.ranks)["step"].sort()


def hook_names(run: RunData) -> list[str]:
    """The names of the communication hooks of ``run``."""
    return sorted({one.hook for log in run.events.values() for one in log.data_parallel if one.hook is not None})
