"""The parts of each step of each rank, in whole nanoseconds on one clock, as a timeline draws them.

The same parts as in ``analyse.steps.phases``, for every recorded step and not only steady ones. ``blocked`` is time in
collectives whose waiting and transfer are not separated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.waiting import reductions
from allpull.rundir.read.steps import TAGS

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
"""In step order: an evaluation or checkpoint between two steps is at the beginning of the later one."""
FROM_BEGIN = ("evaluation", "checkpoint", "input", "copy", "blocked", "wait", "transfer")
Piece = tuple[str, int, int]
"""A part, or a piece of it, with its begin and end in ns."""
SMALL_NS = 100_000  # the cost of entering and leaving collectives is not worth drawing
AS_RECORDED = ("evaluation", "checkpoint", "input", "copy", "forward", "optimizer")


def step_parts(aligned: AlignedRun, ranks: int, inside: pl.Expr | None = None) -> pl.DataFrame:
    """Every recorded step, by rank and step, with its parts; with ``inside`` of the column step, those steps alone.

    Columns: rank, step, epoch, samples, begin_ns, end_ns, arrival_ns (of the last reduction), tags (a list), and for
    each of ``PARTS`` its ns.
    """
    reduced = step_reductions(aligned, ranks, inside)
    is_known = pl.col("wait_ns").is_not_null()
    of_steps = reduced.group_by("rank", "step").agg(
        pl.col("reduced_ns").sum(),
        pl.col("wait_ns").sum().alias("reduction_wait"),
        pl.col("transfer_ns").sum().alias("reduction_transfer"),
        pl.when(is_known).then(0).otherwise("reduced_ns").sum().alias("unsplit"),
    )
    steps = aligned.steps if inside is None else aligned.steps.filter(inside)
    steps = steps.join(of_steps, on=["rank", "step"], how="left", maintain_order="left").with_columns(
        pl.col("reduced_ns", "reduction_wait", "reduction_transfer", "unsplit").fill_null(0)
    )
    return (
        steps.join(_called(aligned), on=["rank", "step"], how="left", maintain_order="left")
        .with_columns(pl.col("wait_ns", "transfer_ns", "collective_ns").fill_null(0))
        .with_columns(_kept().alias("kept"))
        .with_columns((pl.col(name) * pl.col("kept")).floor().cast(pl.Int64) for name in ("wait_ns", "transfer_ns"))
        .select(
            *("rank", "step", "epoch", "samples", "begin_ns", "end_ns", "arrival_ns"),
            pl.concat_list(pl.when(pl.col(f"tag_{tag}")).then(pl.lit(tag)) for tag in TAGS)
            .list.drop_nulls()
            .alias("tags"),
            *(pl.col(f"{name}_ns").fill_null(0).alias(name) for name in AS_RECORDED),
            (pl.col("backward_ns").fill_null(0) - pl.col("reduced_ns")).clip(0).alias("backward"),
            (pl.col("reduction_wait") + pl.col("wait_ns")).alias("wait"),
            (pl.col("reduction_transfer") + pl.col("transfer_ns")).alias("transfer"),
            (pl.col("unsplit") + _unmatched()).alias("blocked"),
        )
        .sort("rank", "step")
    )


def step_reductions(aligned: AlignedRun, ranks: int, inside: pl.Expr | None = None) -> pl.DataFrame:
    """Every reduction of gradients with met_ns: until when the rank waited for the last one to arrive.

    With ``inside``, of such steps alone. Columns as of ``collectives.waiting.reductions``; met_ns is null where not all
    arrivals are known.
    """
    every = aligned.reductions if inside is None else aligned.reductions.filter(inside)
    reduced = reductions(every, ranks)
    if not aligned.clock.compares:
        reduced = reduced.with_columns(
            pl.lit(None, dtype=pl.Int64()).alias(name) for name in ("wait_ns", "transfer_ns")
        )
    return reduced.with_columns((pl.col("arrival_ns") + pl.col("wait_ns")).alias("met_ns"))


def _called(aligned: AlignedRun) -> pl.DataFrame:
    """Wait and transfer of matched calls, by rank and step."""
    if aligned.clock.compares:
        return aligned.matched.costs()
    return aligned.matched.costs().clear()


def _unmatched() -> pl.Expr:
    left = pl.col("collective_ns") - pl.col("wait_ns") - pl.col("transfer_ns")
    return pl.when(left > SMALL_NS).then(left).otherwise(0)


def _kept() -> pl.Expr:
    """The part of matched calls' time that fits into the step's own measurement: their ends are stamped twice."""
    matched = (pl.col("wait_ns") + pl.col("transfer_ns")).cast(pl.Float64)
    return pl.when(matched > 0).then(pl.min_horizontal(pl.col("collective_ns") / matched, 1.0)).otherwise(0.0)


def place_parts(
    begin_ns: int, end_ns: int, lengths_ns: Mapping[str, int], exact: Iterable[Piece], arrival_ns: int | None
) -> list[tuple[Piece, bool]]:
    """Where the parts of one step are, by their begin, and whether each place was recorded.

    ``exact`` pieces keep their place, and make up all of their part. The others go around them with the lengths
    ``lengths_ns``: those of ``FROM_BEGIN`` from the begin on, the optimizer up to the end, backward up to the arrival
    of the last gradient, and forward up to backward. Nothing overlaps; a part without room is left out.
    """
    room, pieces = [(begin_ns, end_ns)], []
    known = sorted(exact, key=lambda piece: piece[1])
    for name, from_ns, until_ns in known:
        pieces += [((name, *slot), True) for slot in _take(room, max(until_ns - from_ns, 0), from_ns, until_ns)]
    left = {name: length_ns for name, length_ns in lengths_ns.items() if length_ns > 0}
    for name in {piece[0] for piece in known} & left.keys():
        del left[name]
    orders = (("optimizer", True), *((name, False) for name in FROM_BEGIN), ("backward", True), ("forward", True))
    limit_ns = end_ns
    for name, from_the_end in orders:
        if name not in left:
            continue
        until_ns = min(limit_ns, arrival_ns) if name == "backward" and arrival_ns is not None else limit_ns
        slots = _take(room, left[name], begin_ns, until_ns, from_the_end=from_the_end)
        missing_ns = left[name] - sum(until - begin for begin, until in slots)
        limit_ns = slots[0][0] if slots and from_the_end else limit_ns
        slots += _take(room, missing_ns, begin_ns, end_ns)
        pieces += [((name, *slot), False) for slot in slots]
    return sorted(pieces, key=lambda piece: piece[0][1:])


def _take(
    room: list[tuple[int, int]], length_ns: int, from_ns: int, until_ns: int, *, from_the_end: bool = False
) -> list[tuple[int, int]]:
    """Take ``length_ns``, or what there is, out of ``room`` between two moments; the intervals taken, ascending."""
    taken: list[tuple[int, int]] = []
    for slot in sorted((one for one in room if one[0] < until_ns and one[1] > from_ns), reverse=from_the_end):
        if length_ns <= 0:
            break
        begin, end = max(slot[0], from_ns), min(slot[1], until_ns)
        part = (max(begin, end - length_ns), end) if from_the_end else (begin, min(end, begin + length_ns))
        length_ns -= part[1] - part[0]
        taken.append(part)
        place = room.index(slot)
        room[place : place + 1] = [(a, b) for a, b in ((slot[0], part[0]), (part[1], slot[1])) if b > a]
    return sorted(taken)
