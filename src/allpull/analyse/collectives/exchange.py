"""Whether ranks of one process group exchange gradients at all, as far as the records show."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData

SCALAR_BYTES = 8  # one number, such as a loss or a count: what programs average besides gradients
BARRIERS = ("barrier", "monitored_barrier")
LEAST_STEPS = 10  # of each rank: parameters may be averaged only every few steps
RECORDED_BY = ("collectives", "post-accumulate-hook", "networks", "gradients")
"""The parts of observation without which an exchange could go unnoticed."""
SLACK_NS = 50_000  # of a step: how far the time of its collectives may exceed that of those it lists


@dataclass(frozen=True, slots=True, kw_only=True)
class NoExchange:
    """Ranks of one process group that were seen to train, and not to exchange anything as large as gradients.

    ``steps``: of the rank with the fewest; ``passes``: backward passes of all ranks.
    """

    ranks: int
    steps: int
    passes: int

    @property
    def sentence(self) -> str:
        """What is wrong, without a full stop."""
        return f"{self.ranks:,} ranks in one process group exchange no gradients: they train different models"


def no_exchange(run: RunData) -> NoExchange | None:
    """The ranks of ``run``, if they exchange no gradients; None: they do, or the records cannot tell.

    Any reduction in backward counts as an exchange, and any collective of more than one number after the first step,
    whatever it carries; so does every way of exchanging that is not recorded, where the program may use it.
    """
    ranks = run.record.ranks
    if ranks < 2 or run.record.kind != "run" or not _all_seen(run, ranks):
        return None
    trained = run.steps.group_by("rank").agg(pl.len().alias("steps"), pl.col("backward_passes").sum().alias("passes"))
    enough = trained.filter(pl.col("steps") >= LEAST_STEPS, pl.col("passes") > 0)
    if enough.height < ranks or run.steps["arrival_ns"].count() or not run.reductions.is_empty():
        return None
    first = run.steps.group_by("rank").agg(pl.col("step").min().alias("first"))
    if _calls_carry(run, first) or _waits_unlisted(run, first):
        return None
    least = enough["steps"].to_list()
    return NoExchange(ranks=ranks, steps=min(least), passes=sum(enough["passes"].to_list()))


def _all_seen(run: RunData, ranks: int) -> bool:
    """Whether an exchange of any rank would be in the records."""
    logs = [run.events.get(rank) for rank in range(ranks)]
    sources = [set(run.headers[rank].sources) if rank in run.headers else set() for rank in range(ranks)]
    return all(log is not None and _sees_all(log, ranks) for log in logs) and all(
        of_rank >= set(RECORDED_BY) for of_rank in sources
    )


def _sees_all(log: EventLog, ranks: int) -> bool:
    """Whether an exchange of this rank of a job of ``ranks`` ranks would be in its records."""
    joined = log.process_groups[-1] if log.process_groups else None
    is_whole = not (log.switched_off or log.watching or log.thinned or log.buckets or log.cut_off or log.damaged)
    return joined is not None and joined.ranks == ranks and not joined.unobserved and is_whole


def _calls_carry(run: RunData, first: pl.DataFrame) -> bool:
    """Whether a collective may carry gradients: it is larger than one number, and not of the first step alone."""
    kinds = [
        (rank, one.id)
        for rank, log in run.events.items()
        for one in log.collective_kinds
        if one.op not in BARRIERS and one.size_bytes > SCALAR_BYTES and one.group_ranks > 1
    ]
    if not kinds:
        return False
    large = pl.DataFrame(kinds, schema={"rank": pl.Int64, "kind": pl.Int64}, orient="row")
    calls = run.collectives.join(large, on=["rank", "kind"], how="semi").join(first, on="rank", how="left")
    is_later = calls.filter(pl.col("step") > pl.col("first"))
    of_first = calls.select("rank", "kind").n_unique()
    return not is_later.is_empty() or of_first < large.height  # one that no step lists may have been called anywhere


def _waits_unlisted(run: RunData, first: pl.DataFrame) -> bool:
    """Whether a rank waits for collectives that its steps do not list, such as those of DTensor."""
    listed = run.collectives.group_by("rank", "step").agg(pl.col("blocked_ns").sum().alias("listed_ns"))
    later = run.steps.join(first, on="rank", how="left").filter(pl.col("step") > pl.col("first"))
    waits = later.join(listed, on=["rank", "step"], how="left").select(
        pl.col("collective_ns").fill_null(0) - pl.col("listed_ns").fill_null(0) > SLACK_NS
    )
    return bool(waits.to_series().any())
