"""The moments of a window's steps, and its calls of collectives, as arrays of event × rank on one clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.collectives import waiting
from allpull.analyse.collectives.matching import Matched
from allpull.analyse.steps.grid import Floats
from allpull.replay.window import WORK, Bools
from allpull.units import NS_PER_S

Ints = NDArray[np.int64]
Places = NDArray[np.int8]
NOWHERE, ABSENT = -1, -2
"""Instead of a place in ``WORK``: a call that is inside none of its phases, and a rank that takes no part in it."""
MOMENTS = ("begin_ns", "end_ns", "arrival_ns", "done_ns")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """When steps began and ended and gradients were reduced, in s after ``origin_ns``, shape (steps, ranks).

    ``reduces`` (steps,): arrival and done are known of all ranks. ``reduced_s``: from arrival to done, 0 where one of
    them is unknown; ``arrival_s`` and ``done_s`` are meaningless there.
    """

    begin_s: Floats
    end_s: Floats
    arrival_s: Floats
    done_s: Floats
    reduces: Bools
    reduced_s: Floats
    origin_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Matched calls of collectives.

    ``step_of`` (calls,): row of the steps; ``use`` (calls,): of ``uses``, which say operation and phase; ``direction``
    (calls,): as in ``analyse.collectives.waiting``; ``root`` (calls,): its rank, −1: none. The others have shape
    (calls, ranks). ``member``: the rank took part. ``arrive_s``, ``stand_s``, ``leave_s``: when it called, began to be
    blocked, and returned. ``blocks``: it waited for the call at all. ``inside``: place in ``WORK`` of the phase that it
    called in, ``NOWHERE`` or ``ABSENT``.
    """

    step_of: NDArray[np.intp]
    use: NDArray[np.intp]
    uses: tuple[str, ...]
    direction: Places
    root: Ints
    member: Bools
    arrive_s: Floats
    stand_s: Floats
    leave_s: Floats
    blocks: Bools
    inside: Places


def in_window(records: pl.DataFrame, numbers: Ints) -> pl.DataFrame:
    """The rows of ``records`` that are of steps ``numbers``, which are consecutive."""
    return records.filter(pl.col("step").is_between(int(numbers[0]), int(numbers[-1])))


def moments(steps: pl.DataFrame, ranks: int) -> Moments:
    """The moments of ``steps``, all of which all ``ranks`` ranks recorded: columns of ``rundir.read.steps.SCHEMA``.

    A step begins when the one before ended: a difference between two records there is the error of their clocks.
    """
    begin, end, arrival, done = (steps[name].fill_null(0).to_numpy().reshape(ranks, -1).T for name in MOMENTS)
    is_known = (steps["arrival_ns"].is_not_null() & steps["done_ns"].is_not_null()).to_numpy().reshape(ranks, -1).T
    origin_ns = int(begin[0].min())
    bounds_s = np.maximum.accumulate(np.vstack([begin[:1], end]) - origin_ns, axis=0) / NS_PER_S
    return Moments(
        begin_s=bounds_s[:-1],
        end_s=bounds_s[1:],
        arrival_s=(arrival - origin_ns) / NS_PER_S,
        done_s=(np.maximum(done, arrival) - origin_ns) / NS_PER_S,
        reduces=np.asarray(is_known.all(axis=1)),
        reduced_s=np.where(is_known, np.maximum(done - arrival, 0), 0) / NS_PER_S,
        origin_ns=origin_ns,
    )


def calls(matched: Matched, numbers: Ints, ranks: int, origin_ns: int) -> Calls:
    """The ``matched`` calls in steps ``numbers``, which are consecutive.

    Calls within an evaluation or a checkpoint are included: a rank that waits there for another one does not evaluate.
    Calls that no rank ever waited for, and calls on whose step ranks do not agree, are left out.
    """
    uses = _uses(matched.uses)
    kept = _kept(matched.calls.join(uses, on="use", how="inner", maintain_order="left"), numbers)
    event = kept["match"].rank("dense").to_numpy().astype(np.intp) - 1
    rank = kept["rank"].to_numpy()
    count = int(event.max()) + 1 if event.size else 0
    shape = (count, ranks)
    arrive_s, leave_s, blocked_s = (np.zeros(shape) for _ in range(3))
    member, blocks = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    inside = np.full(shape, ABSENT, dtype=np.int8)
    begin_ns, end_ns, blocked_ns = (kept[name] for name in ("begin_ns", "end_ns", "blocked_ns"))
    member[event, rank] = True
    blocks[event, rank] = end_ns.is_not_null().to_numpy()
    arrive_s[event, rank] = (begin_ns - origin_ns).to_numpy() / NS_PER_S
    leave_s[event, rank] = (end_ns.fill_null(begin_ns) - origin_ns).to_numpy() / NS_PER_S
    blocked_s[event, rank] = blocked_ns.fill_null(0).to_numpy() / NS_PER_S
    inside[event, rank] = kept["place"].to_numpy()
    firsts = np.unique(event, return_index=True)[1]
    names = kept["name"].gather(firsts)
    known = names.unique(maintain_order=True)
    return Calls(
        step_of=(kept["step"].to_numpy()[firsts] - numbers[0]).astype(np.intp),
        use=names.replace_strict(known, range(known.len()), return_dtype=pl.Int64).to_numpy().astype(np.intp),
        uses=tuple(known),
        direction=kept["direction"].to_numpy()[firsts],
        root=kept["root"].to_numpy()[firsts],
        member=member,
        arrive_s=arrive_s,
        stand_s=leave_s - blocked_s,
        leave_s=leave_s,
        blocks=blocks,
        inside=inside,
    )


def _uses(uses: pl.DataFrame) -> pl.DataFrame:
    """The name of each use, and its phase: columns use, name, place, direction, root."""
    direction = waiting.direction(pl.col("op"))
    return uses.with_row_index("use").select(
        "use",
        pl.when(pl.col("inside").is_null()).then("op").otherwise(pl.format("{} in {}", "op", "inside")).alias("name"),
        pl.col("inside")
        .replace_strict(list(WORK), list(range(len(WORK))), default=NOWHERE, return_dtype=pl.Int8)
        .alias("place"),
        direction.alias("direction"),
        pl.when(direction != waiting.ALL).then("root").fill_null(-1).alias("root"),
    )


def _kept(kept: pl.DataFrame, numbers: Ints) -> pl.DataFrame:
    """The calls of matches that are events, by match and rank."""
    step = pl.col("step")
    events = (
        kept.lazy()
        .drop_nulls("match")
        .group_by("match")
        .agg(
            step.min().alias("first"),
            step.max().alias("last"),
            pl.col("end_ns").count().alias("blocks"),
        )
        .filter(
            pl.col("first") == pl.col("last"),
            pl.col("first").is_between(int(numbers[0]), int(numbers[-1])),
            pl.col("blocks") > 0,
        )
        .select("match")
        .collect()
    )
    return kept.join(events, on="match", how="semi").sort("match", "rank")
