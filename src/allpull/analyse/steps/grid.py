"""Arrange step records as arrays of step × rank, in float seconds.

Integer nanoseconds are subtracted before they become floats, so a clock that reads 10^18 loses nothing, and a shift
of all clocks changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.collectives.reductions import every_reduction, matched
from allpull.rundir.read.reductions import SCHEMA as LISTED_SCHEMA
from allpull.schema.steps import PHASES
from allpull.units import NS_PER_S

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Steps that all ranks recorded; arrays have shape (steps, ranks) unless stated otherwise, NaN for not measured.

    ``spans_s`` holds the recorded spans by the names of ``schema.steps.PHASES``; ``called_s`` is time blocked in
    collectives that are part of none of them. ``arrival_s`` and ``done_s`` (reductions of a step, steps, ranks) count
    from the earliest begin of their step on any rank, so they compare across ranks that share a clock; ``alike``
    (reductions, steps): all ranks reduced the same networks there. ``busy_s`` is how long the accelerator had work.
    An array that nothing was measured of may be read-only.
    """

    wall_s: Floats
    samples: Floats
    spans_s: dict[str, Floats]
    called_s: Floats
    arrival_s: Floats
    done_s: Floats
    alike: NDArray[np.bool_]
    busy_s: Floats

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return int(self.wall_s.shape[0])

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return int(self.wall_s.shape[1])


def arrange(
    records: pl.DataFrame, steps: NDArray[np.int64], ranks: int, reductions: pl.DataFrame | None = None
) -> Grid:
    """The records of ``steps``, each of which all ``ranks`` ranks recorded, as a grid; columns go by rank.

    ``records`` has the columns of ``rundir.read.steps.SCHEMA``, and maybe ``busy_ns`` (``analyse.steps.device``);
    ``reductions`` those of ``collectives.reductions``, None: only that of each record itself.
    """
    cells = _Cells.of(records, steps, ranks)
    return Grid(
        wall_s=cells.seconds(records["end_ns"] - records["begin_ns"]),
        samples=cells.filled(records["samples"]),
        spans_s={phase: cells.seconds(records[f"{phase}_ns"]) for phase in PHASES},
        called_s=cells.seconds(records["collective_ns"]),
        **_reduced(records, cells, reductions, steps),
        busy_s=cells.seconds(records["busy_ns"]) if "busy_ns" in records.columns else cells.nothing(),
    )


def walls(records: pl.DataFrame, steps: NDArray[np.int64], ranks: int) -> Floats:
    """``Grid.wall_s`` alone of what ``arrange`` takes."""
    return _Cells.of(records, steps, ranks).seconds(records["end_ns"] - records["begin_ns"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cells:
    """Where each row of some records belongs in a grid; ``inside``: which rows do, None for all of them.

    One column is placed at a time, by numpy: all of them together would be a second copy of the records, and polars
    keeps memory that it has used.
    """

    place: NDArray[np.int64]
    inside: NDArray[np.bool_] | None
    shape: tuple[int, int]

    @classmethod
    def of(cls, records: pl.DataFrame, steps: NDArray[np.int64], ranks: int) -> _Cells:
        step, rank = records["step"].to_numpy(), records["rank"].to_numpy()
        row = np.searchsorted(steps, step)
        inside = steps[np.minimum(row, steps.size - 1)] == step if steps.size else np.zeros(step.size, dtype=np.bool_)
        row *= ranks
        row += rank
        if inside.all():
            return cls(place=row, inside=None, shape=(steps.size, ranks))
        return cls(place=row[inside], inside=inside, shape=(steps.size, ranks))

    def nothing(self) -> Floats:
        return np.broadcast_to(np.nan, self.shape)  # one number: what was not measured takes no memory

    def kept(self, values: pl.Series) -> NDArray[Any]:
        """Those of ``values`` that have a place; floats where some are null, which become NaN."""
        every: NDArray[Any] = values.to_numpy()
        return every if self.inside is None else every[self.inside]

    def filled(self, values: pl.Series) -> Floats:
        if values.null_count() == values.len():
            return self.nothing()
        cells = np.full(self.shape, np.nan)
        cells.reshape(-1)[self.place] = self.kept(values)
        return cells

    def seconds(self, ns: pl.Series) -> Floats:
        return self.filled(_seconds(ns))

    def earliest(self, ns: pl.Series) -> NDArray[np.int64]:
        """The least of any rank, shape (steps,)."""
        cells = np.full(self.shape, np.iinfo(np.int64).max)
        cells.reshape(-1)[self.place] = self.kept(ns)
        earliest: NDArray[np.int64] = cells.min(axis=1)
        return earliest


def _reduced(
    records: pl.DataFrame, cells: _Cells, reductions: pl.DataFrame | None, steps: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The parts of a ``Grid`` that are of reductions; ``cells``: where the ``records`` belong in it."""
    ranks = cells.shape[1]
    if reductions is None:
        reductions = every_reduction(records, pl.DataFrame(schema=LISTED_SCHEMA))
    own = _Cells.of(reductions, steps, ranks)
    row, place = own.place // ranks, own.kept(reductions["reduction"])
    start_ns = cells.earliest(records["begin_ns"])[row]
    shape = (int(place.max(initial=0)) + 1, steps.size, ranks)
    at = place * (steps.size * ranks) + own.place
    arrival_s, done_s = np.full(shape, np.nan), np.full(shape, np.nan)
    for moments_s, name in ((arrival_s, "arrival_ns"), (done_s, "done_ns")):
        moments_s.reshape(-1)[at] = _seconds(pl.Series(own.kept(reductions[name]) - start_ns)).to_numpy()
    met = reductions.select("step", "reduction", "networks")
    known = matched(met if own.inside is None else met.filter(own.inside), ranks)["known"].to_numpy()
    alike = np.ones(shape[:2], dtype=np.bool_)
    alike[place, row] = known
    return {"arrival_s": arrival_s, "done_s": done_s, "alike": alike}


def placed(values: pl.DataFrame, name: str, steps: NDArray[np.int64], ranks: int) -> Floats:
    """Column ``name`` (ns) of ``values`` (with columns rank and step) as seconds on the grid; 0 where there is none.

    ``steps`` are ascending; rows of other steps are ignored.
    """
    inside = of_steps(values, steps).filter(pl.col("rank").is_between(0, ranks - 1))
    cells = np.zeros((steps.size, ranks))
    rows = np.searchsorted(steps, inside["step"].to_numpy())
    cells[rows, inside["rank"].to_numpy()] = inside[name].cast(pl.Float64).to_numpy() / NS_PER_S
    return cells


def of_steps(records: pl.DataFrame, steps: NDArray[np.int64]) -> pl.DataFrame:
    """The rows of ``records`` whose ``step`` is one of ``steps``, in their order."""
    wanted = pl.DataFrame({"step": steps}, schema={"step": pl.Int64})
    return records.join(wanted, on="step", how="semi", maintain_order="left")


def _seconds(ns: pl.Series) -> pl.Series:
    return ns.to_frame("ns").lazy().select(pl.col("ns").cast(pl.Float64) / NS_PER_S).collect().to_series()
