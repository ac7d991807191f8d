"""The moments of a window's steps, and its calls of collectives, as arrays of event × rank on one clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import CALL_MOMENTS
from allpull.analyse.collectives import waiting
from allpull.analyse.collectives.matching import Matched
from allpull.analyse.collectives.reductions import MOMENTS, matched
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording.chosen_steps import ChosenSteps
from allpull.replay.window import WORK, Bools
from allpull.rundir.read.reductions import SPENT
from allpull.units import NS_PER_S

Ints = NDArray[np.int64]
Places = NDArray[np.int8]
NOWHERE, ABSENT = -1, -2
"""Instead of a place in ``WORK``: a call that is inside none of its phases, and a rank that takes no part in it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduced:
    """Reductions of gradients that all ranks recorded, in their order; times in s after the origin of ``Moments``.

    ``step_of`` (reductions,): row of the steps; ``place`` (reductions,): which one of its step, from 0; ``networks``
    (reductions,): which of ``names``. The others have shape (reductions, ranks): ``begin_s``, of the backward pass (NaN
    where it was not recorded), ``arrival_s`` and ``done_s``. ``spent_s`` (phases, reductions, ranks): what the step had
    spent in each of ``rundir.read.reductions.SPENT`` when it was done, NaN where it was not recorded.
    """

    step_of: NDArray[np.intp]
    place: NDArray[np.intp]
    networks: NDArray[np.intp]
    names: tuple[str, ...]
    begin_s: Floats
    arrival_s: Floats
    done_s: Floats
    spent_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """When steps began and ended, in s after ``origin_ns``, shape (steps, ranks), and their ``reductions``.

    ``reduced_s`` (steps, ranks): in reductions, from arrival to done; 0 where they are not known.
    """

    begin_s: Floats
    end_s: Floats
    reductions: Reduced
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRecords:
    """The step records of a window: ``inside`` are those of ``of_run`` (columns of ``rundir.read.steps.SCHEMA``).

    A column is taken out where it is read: all of them together would be a second copy of the run.
    """

    of_run: pl.DataFrame
    inside: pl.Series

    def __contains__(self, name: str) -> bool:
        return name in self.of_run.columns

    def __getitem__(self, name: str) -> pl.Series:
        return self.of_run[name].filter(self.inside).rechunk()


def moments(records: StepRecords, reductions: pl.DataFrame, steps: ChosenSteps, ranks: int) -> Moments:
    """The moments of ``steps``, all of which all ``ranks`` ranks recorded, with the ``reductions`` in them.

    Columns of ``rundir.read.steps.SCHEMA`` and ``analyse.collectives.reductions.SCHEMA``. A step begins when the one
    before ended: a difference between two records there is the error of their clocks.
    """
    cut_ns = steps.cut_ns[:, None]
    begin, end = (records[name].to_numpy().reshape(ranks, -1).T - cut_ns for name in ("begin_ns", "end_ns"))
    origin_ns = int(begin[0].min())
    bounds_s = np.maximum.accumulate(np.vstack([begin[:1], end]) - origin_ns, axis=0) / NS_PER_S
    reductions = steps.joined(reductions, *MOMENTS)
    reduced_s = np.zeros(end.shape)
    blocked_s = (reductions["done_ns"] - reductions["arrival_ns"]).clip(0).to_numpy() / NS_PER_S
    np.add.at(reduced_s, (steps.rows(reductions["step"]), reductions["rank"].to_numpy()), blocked_s)
    return Moments(
        begin_s=bounds_s[:-1],
        end_s=bounds_s[1:],
        reductions=_reduced(matched(reductions, ranks).filter("known"), steps, ranks, origin_ns),
        reduced_s=reduced_s,
        origin_ns=origin_ns,
    )


def _reduced(known: pl.DataFrame, steps: ChosenSteps, ranks: int, origin_ns: int) -> Reduced:
    """The reductions ``known`` of all ranks, sorted by rank: that each rank has the same ones makes rows of them."""
    of_first = known.head(known.height // ranks)
    names = of_first["networks"].unique(maintain_order=True).to_list()

    def cells(name: str, since_ns: int = origin_ns) -> Floats:
        if name not in known.columns:
            return np.broadcast_to(np.nan, (of_first.height, ranks))  # one number: it takes no memory
        values = known.select((pl.col(name) - since_ns).cast(pl.Float64).fill_null(float("nan")))
        table: Floats = np.array(values.to_series().to_numpy().reshape(ranks, of_first.height).T, order="C")
        return np.divide(table, NS_PER_S, out=table)

    arrival_s = cells("arrival_ns")
    unknown = np.broadcast_to(np.nan, (len(SPENT), *arrival_s.shape))
    return Reduced(
        step_of=steps.rows(of_first["step"]),
        place=of_first["reduction"].to_numpy().astype(np.intp),
        networks=np.array([names.index(one) for one in of_first["networks"]], dtype=np.intp),
        names=tuple(names),
        begin_s=cells("begin_ns"),
        arrival_s=arrival_s,
        done_s=np.maximum(cells("done_ns"), arrival_s),
        spent_s=np.stack([cells(name, 0) for name in SPENT]) if SPENT[0] in known.columns else unknown,
    )


def calls(collectives: Matched, steps: ChosenSteps, ranks: int, origin_ns: int) -> Calls:
    """The matched calls of ``collectives`` in ``steps``.

    Calls within an evaluation or a checkpoint are included: a rank that waits there for another one does not evaluate.
    Calls that no rank ever waited for, and calls on whose step ranks do not agree, are left out.
    """
    uses = _uses(collectives.uses)
    kept = _kept(collectives.calls.join(uses, on="use", how="inner", maintain_order="left"), steps)
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
        step_of=steps.rows(kept["step"].gather(firsts)),
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


def _kept(kept: pl.DataFrame, steps: ChosenSteps) -> pl.DataFrame:
    """The calls of matches that are events, by match and rank, with moments as ``steps`` join them."""
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
            pl.col("blocks") > 0,
        )
        .collect()
    )
    events = events.filter(steps.hold(events["first"]))
    return steps.joined(kept.join(events, on="match", how="semi").sort("match", "rank"), *CALL_MOMENTS)
