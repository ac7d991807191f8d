"""Split the time that ranks are blocked in a collective into waiting and transfer: the one rule, for all who show it.

DESIGN §4, "One collective". A rank is blocked from b to e, and L is the last arrival that it waits for::

    wait     = max(0, min(L, e) − b)        ("Wait at N×N")
    transfer = max(0, e − max(L, b))

Nobody leaves an all-reduce, all-gather or barrier before the last rank arrives: all wait for all. In a broadcast or
scatter ranks wait for the root. In a reduce or gather only the root waits, for all. A library may hold ranks for
longer: Gloo blocks a sender until its receivers arrive, and rings and trees pass data through other ranks. So all ranks
of a rooted call are assumed to wait for all,

- in a broadcast or scatter, where that leaves less time to transfer than waiting for the root alone;
- in a reduce or gather, where no rank returned before the last one arrived.

A rank that returned before the arrival that others waited for did not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.collectives.reductions import matched

ALL, FROM_ROOT, TO_ROOT = 0, 1, 2
"""Which ranks wait for which: all for all, all for the root, the root for all."""
ROOTED = ("broadcast", "scatter", "reduce", "gather")
"""Operations with one root; a name that begins with one of them is of its kind, except ``NOT_ROOTED``."""
NOT_ROOTED = ("reduce_scatter",)
SPREADING = ("broadcast", "scatter")
"""Rooted operations whose data come from the root."""
ROUNDING_S = 1e-6  # stamps of two kinds may differ by this much without a meaning

Number = TypeVar("Number", np.int64, np.float64)
Bools = NDArray[np.bool_]


def wait_and_transfer(
    begin: NDArray[Number], end: NDArray[Number], last: NDArray[Number]
) -> tuple[NDArray[Number], NDArray[Number]]:
    """Waiting and transfer of ranks that are blocked from ``begin`` to ``end`` in a call of which ``last`` is L.

    Arrays broadcast; they are in seconds or in ns. NaN stays NaN.

    >>> wait_and_transfer(np.array([0.0, 30.0, 100.0]), np.array([120.0, 118.0, 119.0]), np.array(100.0))
    (array([100.,  70.,   0.]), array([20., 18., 19.]))
    """
    return np.maximum(np.minimum(last, end) - begin, 0), np.maximum(end - np.maximum(last, begin), 0)


def reductions(every: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """``every`` reduction with what it cost each rank, from its arrival until it is done.

    ``every`` has the columns of ``collectives.reductions.SCHEMA``, of a job of ``ranks`` ranks. Added are reduced_ns,
    and wait_ns and transfer_ns (null where ranks do not match).
    """
    over = ("step", "reduction")
    table = matched(every, ranks).with_columns(pl.col("arrival_ns").max().over(over).alias("last_ns"))
    begin, end, last = (table[name].to_numpy() for name in ("arrival_ns", "done_ns", "last_ns"))
    wait_ns, transfer_ns = wait_and_transfer(begin, end, last)
    return table.with_columns(
        (pl.col("done_ns") - pl.col("arrival_ns")).clip(0).alias("reduced_ns"),
        pl.when("known").then(pl.Series(wait_ns)).alias("wait_ns"),
        pl.when("known").then(pl.Series(transfer_ns)).alias("transfer_ns"),
    ).drop("known", "last_ns")


def direction(op: pl.Expr) -> pl.Expr:
    """``ALL``, ``FROM_ROOT`` or ``TO_ROOT`` of the operations ``op``, by their names."""
    rooted = begins_with(op, ROOTED) & ~begins_with(op, NOT_ROOTED)
    of_rooted = pl.when(begins_with(op, SPREADING)).then(FROM_ROOT).otherwise(TO_ROOT)
    return pl.when(rooted).then(of_rooted).otherwise(ALL).cast(pl.Int8)


def begins_with(op: pl.Expr, names: tuple[str, ...]) -> pl.Expr:
    """Whether the operations ``op`` begin with one of ``names``."""
    return pl.any_horizontal(op.str.starts_with(name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Calls of collectives, one entry per rank of a call; all arrays have shape (entries,).

    ``call`` counts calls from 0 on and ascends. ``arrive``: when the rank called; ``begin`` to ``end``: when it was
    blocked; all three in seconds or in ns, on one clock. ``blocks``: it was blocked at all, else ``begin`` and ``end``
    say nothing. ``is_root``; ``direction`` is ``ALL``, ``FROM_ROOT`` or ``TO_ROOT``.
    """

    call: NDArray[np.intp]
    arrive: NDArray[Any]
    begin: NDArray[Any]
    end: NDArray[Any]
    blocks: Bools
    is_root: Bools
    direction: NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Met:
    """Who waited in ``Calls``; all arrays have shape (entries,).

    ``meets``: others wait for this rank. ``waits``: it waited for the last of them, which arrived at ``last``.
    """

    meets: Bools
    waits: Bools
    last: NDArray[Any]


def met(calls: Calls, *, slack: float, rounding: float) -> Met:
    """Which ranks waited for which in ``calls``.

    Args:
        calls: of any number of collectives.
        slack: how wrong moments of two ranks may compare, in the unit of ``calls``.
        rounding: ``ROUNDING_S`` in that unit.
    """
    starts = np.flatnonzero(np.diff(calls.call, prepend=-1))
    if not starts.size:
        none = np.zeros(0, dtype=np.bool_)
        return Met(meets=none, waits=none, last=calls.arrive)
    last = np.maximum.reduceat(calls.arrive, starts)[calls.call]
    stayed = calls.blocks & (calls.end >= last - slack)
    meets, waits = np.ones_like(stayed), stayed.copy()
    if not calls.direction.any():
        return Met(meets=meets, waits=waits, last=last)

    left_early = np.add.reduceat(calls.blocks & ~stayed & ~calls.is_root, starts)[calls.call] > 0
    waits &= ~((calls.direction == TO_ROOT) & left_early & ~calls.is_root)

    count = np.add.reduceat(calls.is_root.astype(np.intp), starts)
    place = np.maximum.reduceat(np.where(calls.is_root, np.arange(calls.call.size), 0), starts)
    of_root = calls.arrive[place][calls.call]
    for_root = calls.blocks & (calls.end >= of_root - slack) & (calls.is_root | (calls.arrive <= of_root))
    saved = np.add.reduceat(transfer(calls, waits, last) - transfer(calls, for_root, of_root), starts)[calls.call]
    alone = (calls.direction == FROM_ROOT) & (count == 1)[calls.call] & (saved > rounding)
    return Met(
        meets=np.where(alone, calls.is_root, meets),
        waits=np.where(alone, for_root, waits),
        last=np.where(alone, of_root, last),
    )


def transfer(calls: Calls, waits: Bools, last: NDArray[Any]) -> NDArray[Any]:
    """From ``last``, or from where it began to be blocked if it did not wait, until each rank left; 0: not blocked.

    A rank that computes while the call runs is blocked for only a part of this.
    """
    lasted: NDArray[Any] = np.where(waits, np.maximum(calls.end - last, 0), calls.end - calls.begin)
    return lasted
